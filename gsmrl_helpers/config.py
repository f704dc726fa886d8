"""The settings of a run: a profile (pocket, two_gpu), a variant's changes, a seed.

A profile is a YAML file beside this module; it decides the scale. A variant changes a few settings
of the algorithm, at any scale. Unknown keys are refused everywhere.
"""

from __future__ import annotations

from importlib import resources
from typing import Annotated, Any, Literal

import torch
import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from gsmrl_helpers.advantages import check_advantage_options
from gsmrl_helpers.estimators import check_estimator
from gsmrl_helpers.extras import import_extra
from gsmrl_helpers.losses import check_importance_options, check_normalization_options
from gsmrl_helpers.options import (
    AdvantageNormalizer,
    Baseline,
    ImportanceReweighting,
    KLEstimator,
    LossNormalization,
    profile_names,
)
from gsmrl_helpers.prompting import Prompt, get_prompt
from gsmrl_helpers.vllm_config import VLLMConfig

SCORED_AT_ONCE = 64  # rows that go through the model together where no gradient is needed


class Splits(BaseModel):
    """How many problems of each split are used. `curve` is seen during a run, `dev` is to choose
    with, `test` is to report."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: int = Field(gt=0)
    curve: int = Field(gt=0)
    dev: int = Field(gt=0)
    test: int = Field(gt=0)


class LoraSettings(BaseModel):
    """Low-rank adapters on every matrix of the layers (Hu et al., 2021); all else is frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(gt=0)
    alpha: float = Field(gt=0)  # the adapters' product is multiplied with alpha / rank


AdamBeta = Annotated[float, Field(ge=0, lt=1)]


class RunConfig(BaseModel):
    """Everything that decides a run. Names follow the assignment's where it has them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    profile: str
    variant: str
    seed: int = Field(ge=0, lt=2**63)  # results hold it as an int64

    problems: str  # "pocket", "gsm8k", or a folder of one's own, see gsmrl_helpers.world
    difficulty: float | None = Field(default=None, ge=0, le=1)
    splits: Splits
    policy: str
    dtype: Literal["float32", "bfloat16"]
    device: str = Field(pattern=r"^(cpu|cuda:\d+)$")
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"]
    lora: LoraSettings | None = None
    gradient_checkpointing: bool = False
    threads: int | None = Field(default=None, gt=0)  # None: see gsmrl_helpers.threads
    prompt: str
    reward: str | None = None

    n_grpo_steps: int = Field(ge=0)
    rollout_batch_size: int = Field(gt=0)
    group_size: int = Field(gt=0)
    sampling_temperature: float = Field(gt=0)
    sampling_top_p: float = Field(gt=0, le=1)
    sampling_max_tokens: int = Field(gt=0)
    engine: Literal["local", "vllm"] = "local"
    vllm: VLLMConfig | None = None  # how the server is run, where the engine is one

    train_batch_size: int = Field(gt=0)
    gradient_accumulation_steps: int = Field(gt=0)
    scored_at_once: int = Field(default=SCORED_AT_ONCE, gt=0)
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    master_weights: bool = False  # the optimizer's own copy of bf16 weights, in float32
    learning_rate: float = Field(gt=0)
    adam_betas: tuple[AdamBeta, AdamBeta]
    weight_decay: float = Field(ge=0)
    max_grad_norm: float = Field(gt=0)

    baseline: Baseline = "mean"
    advantage_eps: float = Field(default=1e-6, ge=0)
    advantage_normalizer: AdvantageNormalizer = "std"
    advantage_estimator: str | None = None  # in place of both, see gsmrl_helpers.estimators
    importance_reweighting_method: ImportanceReweighting = "none"
    cliprange: float | None = Field(default=None, ge=0)
    loss_normalization: LossNormalization = "sequence"
    normalization_constant: float | None = Field(default=None, gt=0)
    kl_coef: float = Field(default=0.0, ge=0)
    kl_estimator: KLEstimator = "k3"
    entropy_coef: float = 0.0

    # what keeps the signal alive, see gsmrl_helpers.signal; 0 is off
    dynamic_sampling_rounds: int = Field(default=0, ge=0)
    difficulty_rate: float = Field(default=0.0, ge=0)
    target_right_share: float = Field(default=0.5, gt=0, lt=1)

    validate_every: int = Field(gt=0)
    save_rollouts_every: int = Field(gt=0)
    checkpoint_every: int = Field(gt=0)
    # who gets a copy of metrics.jsonl, which is always written; see gsmrl_helpers.loggers
    loggers: list[Literal["tensorboard", "wandb"]] = []

    @field_validator("problems")
    @classmethod
    def _problems_are_known_or_a_folder(cls, problems: str) -> str:
        if problems not in ("pocket", "gsm8k") and "/" not in problems:
            raise ValueError(
                "allowed: pocket, gsm8k, or the path of a folder with train.jsonl and test.jsonl, "
                "with a slash in it, such as data/my_problems"
            )
        return problems

    @model_validator(mode="after")
    def _sizes_fit(self) -> RunConfig:
        for larger, smaller in (
            ("rollout_batch_size", "train_batch_size"),
            ("train_batch_size", "group_size"),
        ):
            if getattr(self, larger) % getattr(self, smaller):
                raise ValueError(
                    f"{larger}={getattr(self, larger)} is not a multiple of "
                    f"{smaller}={getattr(self, smaller)}"
                )
        if self.prompts_per_step > self.splits.train:
            raise ValueError(
                f"one step needs {self.prompts_per_step} problems, but splits.train="
                f"{self.splits.train}"
            )
        if (self.problems == "pocket") != (self.difficulty is not None):
            raise ValueError("difficulty belongs to problems=pocket, and pocket problems need it")
        if self.difficulty_rate and self.problems != "pocket":
            raise ValueError(
                f"difficulty_rate={self.difficulty_rate} moves the dial of pocket problems, and "
                f"problems={self.problems!r} have none; leave it at 0"
            )
        # What the components would refuse at the first step is refused before any work.
        check_advantage_options(
            torch.zeros(self.group_size),
            self.group_size,
            self.baseline,
            self.advantage_eps,
            self.advantage_normalizer,
        )
        if self.advantage_estimator:
            self._check_estimator(self.advantage_estimator)
        old_log_probs = torch.zeros(1, 1)  # the loop computes them where a method needs them
        check_importance_options(self.importance_reweighting_method, old_log_probs, self.cliprange)
        if self.loss_normalization != "token":
            check_normalization_options(self.loss_normalization, self.normalization_constant)
        if self.master_weights and (self.dtype != "bfloat16" or self.lora):
            raise ValueError(
                f"master_weights is for dtype=bfloat16 without lora, given dtype={self.dtype}, "
                f"lora={self.lora}: float32 weights, and adapters, are their own masters"
            )
        if self.engine == "vllm" and self.vllm is None:
            raise ValueError('engine=vllm needs the server\'s settings, as in vllm={"python": ...}')
        if self.engine == "vllm" and self.vllm.device == self.device != "cpu":
            self._check_shared_gpu(self.vllm)
        if len(set(self.loggers)) < len(self.loggers):
            raise ValueError(f"loggers={self.loggers} names one twice; name each once")
        for package in self.loggers:
            import_extra(package, f"loggers={self.loggers}")
        self.prompt_object()  # an unknown prompt or reward is refused here, before any work
        return self

    def _check_estimator(self, name: str) -> None:
        check_estimator(name)
        if (self.baseline, self.advantage_normalizer) != ("mean", "std"):
            raise ValueError(
                f"advantage_estimator={name!r} takes the place of baseline={self.baseline!r} and "
                f"advantage_normalizer={self.advantage_normalizer!r}: leave those two out"
            )
        if self.dynamic_sampling_rounds:
            raise ValueError(
                f"dynamic_sampling_rounds={self.dynamic_sampling_rounds} asks which groups the "
                f"baseline leaves without a signal, and advantage_estimator={name!r} has none: "
                "choose one of the two"
            )

    def _check_shared_gpu(self, server: VLLMConfig) -> None:
        if not server.sleep or server.weight_sync == "nccl":
            raise ValueError(
                f"trainer and server share {self.device}: the server must sleep while the trainer "
                "trains, and NCCL refuses two of its ranks on one GPU. Given vllm.sleep="
                f"{server.sleep}, vllm.weight_sync={server.weight_sync}: set vllm.sleep=true and "
                "vllm.weight_sync=reload, or another vllm.device"
            )

    @property
    def prompts_per_step(self) -> int:
        return self.rollout_batch_size // self.group_size

    def prompt_object(self) -> Prompt:
        """The prompt, its reward function replaced where `reward` names another one."""
        prompt = get_prompt(self.prompt)
        return prompt.with_reward(self.reward) if self.reward else prompt


def read_profile(name: str) -> dict[str, Any]:
    """The settings of a profile; an unknown name is a ValueError that lists the known ones."""
    if name not in profile_names():
        raise ValueError(f"profile={name!r} is unknown; allowed: {', '.join(profile_names())}")
    text = (resources.files("gsmrl_helpers") / "profiles" / f"{name}.yaml").read_text()
    return yaml.safe_load(text)


SECTIONS = {"splits": '{"test": 64}', "vllm": '{"python": "vllm/bin/python"}'}


def merge_section(name: str, before: Any, change: Any) -> Any:
    """A setting's new value: of a section (splits, vllm) the parts not named stay as they were.

    Raises:
        ValueError: a section that is changed to what is none.
    """
    if name not in SECTIONS or change is None:
        return change
    if not isinstance(change, dict):
        raise ValueError(f"{name}={change!r} must name its parts, as in {SECTIONS[name]}")
    return {**(before or {}), **change}


def make_config(
    profile: str,
    variant: str = "standard",
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
) -> RunConfig:
    """A run's settings: the profile, changed by the variant's settings, changed by the overrides.

    Raises:
        ValueError: an unknown profile or key, or a value that does not fit; the message names it.
    """
    merged = read_profile(profile)
    for changes in (settings or {}, overrides or {}):
        if named := sorted({"profile", "variant", "seed"} & changes.keys()):
            raise ValueError(
                f"{', '.join(named)} cannot be overridden; choose it by its own option"
            )
        merged |= {name: merge_section(name, merged.get(name), v) for name, v in changes.items()}
    try:
        return RunConfig(profile=profile, variant=variant, seed=seed, **merged)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']} (given: {e['input']!r})"
            if e["loc"]
            else e["msg"]
            for e in error.errors()
        )
        raise ValueError(
            f"profile {profile!r} with these changes is not a run: {problems}"
        ) from error
