"""Pictures of the planner: the parts of a device's memory in each phase of a step."""

from __future__ import annotations

import matplotlib.pyplot as plt
from ipywidgets import HTML, Checkbox, Dropdown, HBox, Image, IntSlider, SelectionSlider, VBox
from matplotlib.axes import Axes

from gsmrl_helpers.advantage_explorer import as_png
from gsmrl_helpers.model_shape import ModelShape
from gsmrl_helpers.planner import Parts, Workload, peak, trainer_phases
from gsmrl_helpers.plots import line
from gsmrl_helpers.run_plan import CUDA_RESERVE, GB

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "KV cache")
RESPONSE_TOKENS = 512  # of a row, the assignment's limit
HATCHES = dict(zip(PARTS, ("", "//", "..", "\\\\", "xx", "--"), strict=True))


def draw_phases(ax: Axes, phases: dict[str, Parts], capacity: float | None = None) -> None:
    """Stack the parts of each phase, in GB; what has no colour of its own is "other", in grey.

    Args:
        ax: where to draw.
        phases: bytes of each part in each phase.
        capacity: bytes of the device, drawn as a line.
    """
    names = list(phases)
    left = [0.0] * len(names)
    for part in (*PARTS, "other"):
        sizes = [of_part(phases[name], part) / GB for name in names]
        if any(sizes):
            color = line(part)["color"] if part in PARTS else "0.6"
            hatch = HATCHES.get(part, "")
            ax.barh(
                names, sizes, left=left, color=color, hatch=hatch, label=part, edgecolor="white"
            )
        left = [start + size for start, size in zip(left, sizes, strict=True)]
    if capacity is not None:
        ax.axvline(capacity / GB, color="black", lw=1.2, ls="--", label="the card")
    ax.invert_yaxis()
    ax.set_xlabel("memory (GB)")
    ax.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1.02), fontsize=8, borderaxespad=0)


def of_part(parts: Parts, name: str) -> float:
    """Bytes of one part, or, for "other", of all that have no colour."""
    if name == "other":
        return sum(size for part, size in parts.items() if part not in PARTS)
    return parts.get(name, 0.0)


def plan_explorer(shapes: dict[str, ModelShape], capacities: dict[str, float]) -> VBox:
    """Sliders for a trainer's settings, and what its device must hold.

    Args:
        shapes: policies by name.
        capacities: bytes of GPUs by name.
    """
    policy = Dropdown(options=list(shapes), description="policy")
    gpu = Dropdown(options=list(capacities), description="GPU")
    rows = SelectionSlider(options=(1, 2, 4, 8, 16, 32), value=2, description="microbatch")
    tokens = IntSlider(896, min=128, max=4096, step=128, description="row tokens")
    scored = SelectionSlider(options=(1, 2, 4, 8, 16, 32, 64), value=2, description="scored")
    optimizer = Dropdown(options=("adamw", "adamw_8bit"), description="optimizer")
    rank = SelectionSlider(options=(0, 4, 16, 64), description="LoRA rank")
    masters = Checkbox(False, description="float32 masters")
    checkpointing = Checkbox(True, description="checkpointing")
    picture, verdict = Image(format="png"), HTML()

    def update(_: object = None) -> None:
        masters.disabled = bool(rank.value)  # adapters are float32 already
        work = Workload(
            shape=shapes[policy.value],
            dtype="bfloat16",
            optimizer=optimizer.value,
            master_weights=masters.value and not rank.value,
            gradient_checkpointing=checkpointing.value,
            lora_rank=rank.value,
            batch_rows=128,
            microbatch_rows=rows.value,
            row_tokens=tokens.value,
            response_tokens=min(RESPONSE_TOKENS, tokens.value),
            scored_at_once=scored.value,
        )
        reserve = {"CUDA": CUDA_RESERVE}
        phases = {name: {**parts, **reserve} for name, parts in trainer_phases(work).items()}
        capacity = capacities[gpu.value]
        phase, n_bytes = peak(phases)
        figure, ax = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
        draw_phases(ax, phases, capacity)
        picture.value = as_png(figure)
        verdict.value = (
            f"{n_bytes / GB:.1f} GB at the peak ({phase}), "
            f"{'fits' if n_bytes <= capacity else 'does not fit'} in {capacity / GB:.0f} GB"
        )

    controls = (policy, gpu, rows, tokens, scored, optimizer, rank, masters, checkpointing)
    for control in controls:
        control.observe(update, names="value")
    update()
    columns = [VBox(controls[:3]), VBox(controls[3:6]), VBox(controls[6:])]
    return VBox([HBox(columns), verdict, picture])
