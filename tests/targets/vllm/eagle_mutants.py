"""Planted bugs of vLLM's proposer for EAGLE, each of them the change of one line."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.vllm.eagle_session import EagleBreakableSession, EagleSession
from fuzzgraph.targets.vllm.eagle_target import EagleBreakableDraftTarget, EagleDraftTarget


class _TokensNotShifted(EagleSession):
    """`set_inputs_first_pass` leaves the target's tokens where the sampled ones belong."""

    def _spy(self) -> None:
        super()._spy()
        drafter = self.runner.drafter
        inputs = drafter.set_inputs_first_pass

        def set_inputs(*args: Any, **kwargs: Any) -> Any:
            made = inputs(*args, **kwargs)
            tokens = kwargs["target_token_ids"]
            drafter.input_ids[: len(tokens)] = tokens
            return made

        drafter.set_inputs_first_pass = set_inputs


class _FirstHiddenStates(EagleSession):
    """Later forwards get the hidden states of the target model too."""

    def _spy(self) -> None:
        super()._spy()
        drafter = self.runner.drafter
        update = drafter._update_positions_dependent_metadata

        def updated(*args: Any, **kwargs: Any) -> Any:
            first = drafter.hidden_states.clone()
            made = update(*args, **kwargs)
            build = drafter._get_positions

            def positions(tokens: int) -> Any:
                drafter.hidden_states.copy_(first)
                drafter._get_positions = build
                return build(tokens)

            drafter._get_positions = positions
            return made

        drafter._update_positions_dependent_metadata = updated


class _LengthsStay(EagleSession):
    """Later forwards attend to as many keys as the first one."""

    def _spy(self) -> None:
        super()._spy()
        drafter = self.runner.drafter
        update = drafter._update_positions_dependent_metadata

        def updated(positions: Any, common: Any, *args: Any) -> Any:
            before = common.seq_lens.clone()
            made = update(positions, common, *args)
            common.seq_lens.copy_(before)
            return made

        drafter._update_positions_dependent_metadata = updated


class _InputsAnew(EagleSession):
    """The proposer makes its buffer of token ids anew once its graphs are captured."""

    def capture(self) -> None:
        super().capture()
        drafter = self.runner.drafter
        drafter.input_ids = drafter.input_ids.clone()


class _SmallerGraph(EagleSession):
    """The proposer's dispatcher gives a count just above a captured size that smaller size."""

    def capture(self) -> None:
        super().capture()
        table = self.runner.drafter.cudagraph_dispatcher._bs_to_padded_graph_size
        for size in self._config.capture_bs[:-1]:
            table[size + 1] = size


class _NextRowsSampled(EagleSession):
    """The first tokens are sampled from the hidden states of the row behind."""

    def _spy(self) -> None:
        super()._spy()
        drafter = self.runner.drafter
        inputs = drafter.set_inputs_first_pass

        def set_inputs(*args: Any, **kwargs: Any) -> Any:
            tokens, rows, common = inputs(*args, **kwargs)
            return tokens, rows.roll(-1), common

        drafter.set_inputs_first_pass = set_inputs


class _PaddedSlots(EagleBreakableSession):
    """Slots behind the live rows stay as the last draft had them."""

    def _spy(self) -> None:
        drafter = self.runner.drafter
        slots, buffer = drafter._get_slot_mapping, drafter._slot_mapping_buffer
        last = [buffer.clone()]

        def mapped(tokens: int, given: Any = None) -> Any:
            made = slots(tokens, given)
            if given is not None:
                buffer[len(given) : tokens] = last[0][len(given) : tokens]
            last[0] = buffer.clone()
            return made

        drafter._get_slot_mapping = mapped
        super()._spy()


def _target(session: type[EagleSession]) -> EagleDraftTarget:
    made = EagleDraftTarget("vllm-eagle-draft")
    made.session = session
    return made


def tokens_not_shifted() -> EagleDraftTarget:
    return _target(_TokensNotShifted)


def first_hidden_states() -> EagleDraftTarget:
    return _target(_FirstHiddenStates)


def lengths_stay() -> EagleDraftTarget:
    return _target(_LengthsStay)


def inputs_anew() -> EagleDraftTarget:
    return _target(_InputsAnew)


def smaller_graph() -> EagleDraftTarget:
    return _target(_SmallerGraph)


def next_rows_sampled() -> EagleDraftTarget:
    return _target(_NextRowsSampled)


def padded_slots() -> EagleBreakableDraftTarget:
    made = EagleBreakableDraftTarget("vllm-eagle-draft-breakable")
    made.session = _PaddedSlots
    return made
