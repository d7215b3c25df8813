"""Targets on models of recurrent layers."""

from __future__ import annotations

from dataclasses import fields

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.case.verified_states import verifies_states
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.handover import Excuse
from fuzzgraph.recurrent_layers.delta_rule import POSITIONS
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.vllm.attention_model import OneLayer
from fuzzgraph.targets.vllm.configuration import max_model_len
from fuzzgraph.targets.vllm.gdn_model import LAYERS, OneDeltaNet, layer_module, states_by_key
from fuzzgraph.targets.vllm.gdn_session import DeltaNetSession
from fuzzgraph.targets.vllm.mamba1_model import LAYER_MODULE, OneMamba1
from fuzzgraph.targets.vllm.recurrent_model import MIXER, OneMixer
from fuzzgraph.targets.vllm.recurrent_session import Mamba1Session, RecurrentSession
from fuzzgraph.targets.vllm.release import VLLM, engine_module, has_module, release
from fuzzgraph.targets.vllm.served_requests import SCHEDULER, drafts_behind_prompts
from fuzzgraph.targets.vllm.stubs.chunk_rule import put_chunk_rule
from fuzzgraph.targets.vllm.stubs.platform import BLACKWELL
from fuzzgraph.targets.vllm.stubs.selective_scan import put_selective_scan
from fuzzgraph.targets.vllm.target import VllmTarget

_MODELS = "vllm.model_executor.models.config"
_BASE = "vllm.model_executor.layers.mamba.abstract"

DRIVEN = Capabilities(
    modes=("decode", "idle"),
    page_sizes=(16,),
    dtypes=("float32",),
    max_batch=8,
    max_context_len=64,
    capture_beyond_pool=False,
    preemption=True,
    recurrent_state=True,
    recurrent_only=True,
    # A server's decode follows a prompt. Prompts of one token have a target of their own,
    # because each of them shows a bug that is open (corpus/known_bugs/vllm-issue-57720.toml).
    min_seq_len=2,
)


VERIFIED = DRIVEN.replace(
    modes=("target_verify", "idle"),
    max_batch=4,
    max_draft_tokens=6,
    ragged_verify=True,
    recurrent_verify=True,
    # Open bugs, each in a target of its own: corpus/known_bugs/vllm-issue-53051.toml and
    # vllm-gdn-waiting.toml.
    verified_prompts=False,
    waiting=False,
    # A request that comes back computes its prompt and what it had said before.
    preemption=False,
)


class Mamba2Target(VllmTarget):
    """A model of Mamba2 layers, with their kernels for decode."""

    not_on_device = "its states would have the model's dtype, which rounds what tells them apart"
    kernels = "Mamba2 layer"
    module = "vllm.v1.attention.backends.mamba2_attn"
    backend = "Mamba2AttentionBackend"
    model: type[OneLayer] = OneMixer
    session: type[RecurrentSession] = RecurrentSession
    driven = DRIVEN
    verified = VERIFIED
    metadata = "Mamba2AttentionMetadata"
    slots = "state_indices_tensor_d"
    """Of the builder's metadata: the slots of states that a graph of decodes reads."""
    layer_modules: tuple[str, ...] = (MIXER,)
    """Where releases may have the layer."""

    def __init__(self, name: str, mode: Mode = "decode") -> None:
        super().__init__(name, mode)
        self.capabilities = self.driven if mode == "decode" else self.verified

    def refused(self, config: EngineConfig) -> str | None:
        if not config.recurrent_state:
            return "the model always has a recurrent layer: recurrent_state must be true"
        return None

    def load(self) -> None:
        super().load()
        self._demand_slots()
        with cuda_on_cpu():
            VLLM.load(*filter(has_module, self.layer_modules), _MODELS)
        # The rules of configuration that the engine has for its own models of this kind.
        models = engine_module(_MODELS)
        models.MODELS_CONFIG_MAP[self.model.architecture] = models.MambaModelConfig

    def _demand_slots(self) -> None:
        """
        Raises:
            AdapterUnavailable: the release's builder stages the slots of states otherwise than
                this target reads them.
        """
        metadata = getattr(engine_module(self.module), self.metadata)
        if self.slots not in {field.name for field in fields(metadata)}:
            raise AdapterUnavailable(
                f"vLLM {release()} has no {self.slots!r} in its {self.metadata}, which target "
                f"{self.name!r} shows. Name a release from 0.17.0 on, for example --release 0.33.0."
            )


class Mamba1Target(Mamba2Target):
    """A model of Mamba1 layers, with their kernels for decode."""

    kernels = "Mamba1 layer"
    module = "vllm.v1.attention.backends.mamba1_attn"
    backend = "Mamba1AttentionBackend"
    model = OneMamba1
    session = Mamba1Session
    metadata = "Mamba1AttentionMetadata"
    layer_modules = (LAYER_MODULE,)
    also_stood_in_for = ("the kernel of prompts, by a model",)

    def load(self) -> None:
        super().load()
        with cuda_on_cpu():
            put_selective_scan()


class PromptTarget(Mamba2Target):
    """The same with prompts of one token, which the runner takes for decodes."""

    kernels = "Mamba2 layer, prompts of one token too"
    driven = DRIVEN.replace(min_seq_len=1)


class DeltaNetTarget(Mamba2Target):
    """A model of gated-delta-net layers, with their kernels for decode.

    On Hopper GPUs prompts would take FlashInfer's kernel; here they take the engine's own.
    """

    kernels = "gated delta net"
    module = "vllm.v1.attention.backends.gdn_attn"
    backend = "GDNAttentionBackend"
    metadata = "GDNAttentionMetadata"
    slots = "non_spec_state_indices_tensor"
    model = OneDeltaNet
    session = DeltaNetSession
    layer_modules = tuple(module for module, _ in LAYERS)
    device = BLACKWELL
    also_stood_in_for: tuple[str, ...] = ("the kernels of prompts, by a model",)
    excuses: tuple[Excuse, ...] = (
        Excuse(
            "*.num_decode_draft_tokens_cpu",
            "meaning",
            "vLLM gpu_model_runner.py _prepare_inputs: -1 for rows without a verify",
            "gdn_attn.py counts the rows that are not below 0, and no others",
        ),
        Excuse(
            "*.spec_token_indx",
            "form",
            "vLLM gdn_attn.py build: 0, 1, ... for the tokens of a verify",
            "a list of tokens; of one row of two tokens it looks like offsets",
        ),
    )

    def refused(self, config: EngineConfig) -> str | None:
        if config.max_context_len > POSITIONS:
            longest = f"max_context_len={config.max_context_len}"
            return f"{longest} is more than the {POSITIONS} positions that have a key"
        if verifies_states(config) and max_model_len(config) == config.page_size:
            # gpu_model_runner.py may_reinitialize_input_batch of 0.20: models with attention, too,
            # have several groups, and so never the block sizes that the runner began with.
            return (
                f"a model of {config.page_size} tokens keeps the block table of one without state"
            )
        return super().refused(config)

    def load(self) -> None:
        super().load()
        with cuda_on_cpu():
            put_chunk_rule(layer_module())
        if self.mode == "target_verify":
            self._demand_drafts()

    def _demand_drafts(self) -> None:
        """
        Raises:
            AdapterUnavailable: the release refuses drafts for models with states but its own
                (model_executor/layers/mamba/abstract.py of 0.16.0 asks for the model's type).
        """
        asked = engine_module(_BASE).MambaBase.get_kv_cache_spec.__code__.co_names
        if "hf_config" in asked:
            raise AdapterUnavailable(
                f"vLLM {release()} verifies drafts of Qwen3-Next alone among models with states, "
                f"and target {self.name!r} is a model of its own. Name a release from 0.17.0 on, "
                "for example --release 0.33.0."
            )

    def _demand_slots(self) -> None:
        super()._demand_slots()
        if not states_by_key():
            raise AdapterUnavailable(
                f"vLLM {release()} keeps states of {self.backend} by value and not by key, which "
                f"target {self.name!r} does not read. Name a release from 0.17.0 on, for example "
                "--release 0.33.0."
            )


class PromptVerifyTarget(DeltaNetTarget):
    """The same where verifies compute several tokens of a prompt."""

    kernels = "delta net with prompts"
    verified = VERIFIED.replace(verified_prompts=True)


class JoiningVerifyTarget(DeltaNetTarget):
    """The same where requests join with drafts behind their prompts."""

    kernels = "drafts behind prompts"
    verified = VERIFIED.replace(drafted_prompts=True)

    def load(self) -> None:
        super().load()
        demand_padded_prompts(self.name)


def demand_padded_prompts(target: str) -> None:
    """
    Raises:
        AdapterUnavailable: the release's scheduler puts no drafts behind a prompt.
    """
    with cuda_on_cpu():
        VLLM.load(SCHEDULER)
    if not drafts_behind_prompts():
        raise AdapterUnavailable(
            f"vLLM {release()} puts no drafts behind a prompt, and target {target!r} is about "
            "them. Name a later release, for example --release 0.33.0."
        )


class WaitingVerifyTarget(DeltaNetTarget):
    """The same where requests wait while others verify."""

    kernels = "delta net with waits"
    verified = VERIFIED.replace(waiting=True)
