"""A layer of experts behind attention: known weights, and what the layer computes.

A router gives every token a number for each expert and takes the `k` experts with the largest
(`routing`); ranks have parts of the experts (`placement`); an expert is two products with an
activation between them (`weights`, `quantised`), and the layer gives the weighted sum (`outputs`).
With LoRA adapters each product has one of its own (`adapted`).

A token's row holds columns of its own, one column for its token id, and columns of attention
(`columns`). The router reads the id, the experts read the token's own columns, and the weights of
attention's are zero. So the truth follows from the token alone and no two experts come close for
any token, while what attention leaves undefined in padded rows reaches router and experts as it
does in a model.
"""
