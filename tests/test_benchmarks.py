"""The benches: how contenders are timed, one tiny turn of each, and the page that shows them."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import (
    course,
    growth,
    log_probs,
    profile,
    rounding,
    sampling,
    step,
    timing,
    update,
    worlds,
)
from benchmarks.__main__ import app
from benchmarks.gradients import plain_gradient
from benchmarks.precision import in_float64
from benchmarks.step import our_gradient, settings_of
from gsmrl_helpers import how_fast
from gsmrl_helpers.loop import update_policy
from gsmrl_helpers.paths import ROOT

QUICK = timing.QUICK


@pytest.fixture(scope="module")
def world() -> worlds.World:
    return worlds.random_world(QUICK, stops=True)


# --- timing -----------------------------------------------------------------------------------


def test_contenders_warm_up_once_and_then_take_turns():
    turns = []

    def contender(name):
        return lambda: turns.append(name) or timing.Run(float(len(turns)), 7)

    runs = timing.interleave({"a": contender("a"), "b": contender("b")}, 3)
    assert "".join(turns) == "ab" + "ababab"
    assert [run.seconds for run in runs["a"]] == [3.0, 5.0, 7.0]
    assert timing.seconds_of(runs["b"]) == {"median": 6.0, "min": 4.0, "max": 8.0}


def test_peak_live_bytes_are_those_of_what_the_work_makes():
    assert timing.peak_live_bytes(lambda: torch.ones(1000).add(1)) == 8000


def test_the_relative_difference_is_that_of_the_whole_vectors():
    expected = [torch.tensor([3.0]), torch.tensor([0.0, 4.0])]
    found = [torch.tensor([3.0]), torch.tensor([0.3, 4.4])]
    assert timing.relative_difference(found, expected) == pytest.approx(0.1, abs=1e-6)
    assert timing.relative_difference([torch.zeros(2)], [torch.zeros(2)]) == 0.0


def test_machine_facts_name_no_machine():
    facts = json.dumps(timing.machine_facts())
    assert torch.__version__ in facts and '"threads"' in facts
    assert os.uname().nodename not in facts and str(ROOT) not in facts


# --- worlds -----------------------------------------------------------------------------------


def test_the_random_policy_has_a_million_parameters():
    model = worlds.random_policy(worlds.VOCAB_SIZE, 104)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(1e6, rel=0.2)


@pytest.mark.parametrize(("stops", "low", "high"), [(True, 0.2, 0.45), (False, 1.0, 1.0)])
def test_answers_use_a_third_of_the_limit_or_all_of_it_for_every_sampler(stops, low, high):
    scale = timing.Scale(n_prompts=8, group_size=8, max_tokens=64)
    world = worlds.random_world(scale, stops)
    for sampler in (sampling.our_sampler(world), sampling.generate_sampler(world, None)):
        assert low <= sampler().tokens / (64 * 64) <= high


def test_tokens_are_counted_up_to_the_padding():
    ids = torch.tensor([[5, 0, 6, 0, 0], [5, 6, 7, 8, 9], [1, 0, 0, 0, 0]])
    assert sampling.count_tokens(ids, pad_token_id=0) == 3 + 5 + 1


def test_generate_stops_where_the_engine_does():
    world = worlds.pocket_world(QUICK)
    stop = sampling.EndsWithAnswer(world.trainer.tokenizer)
    texts = [" 6 </answer>", " <answer>", " </think>", "7</answer>"]
    rows = [world.trainer.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    found = [bool(stop(torch.tensor([[9, 9, 9, *row]]), None)) for row in rows]
    assert found == [True, False, False, True]


def test_a_contender_leaves_the_policy_as_it_was(world):
    before = [parameter.clone() for parameter in world.trainer.model.parameters()]
    rollouts = world.sample()
    with world.unchanged():
        update_policy(world.trainer, rollouts)
        changed = list(map(torch.equal, before, world.trainer.model.parameters()))
        assert not all(changed)
    assert all(map(torch.equal, before, world.trainer.model.parameters()))


# --- the benches, one tiny turn each ------------------------------------------------------------


def test_every_way_of_the_update_has_the_same_gradient():
    report = update.measure(QUICK)
    *ways, whole, floor = report.tables["ways"]
    assert ways[0]["way"] == "every row, padded"
    assert (whole["way"], floor["way"]) == (update.WHOLE, update.FLOOR)
    assert max(row["difference of gradient"] for row in ways) < 1e-5
    assert ways[-1]["tokens through the model"] < ways[0]["tokens through the model"] / 2
    assert 0 <= report.tables["padding"][0]["padding, share"] < 0.05


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo"])
def test_our_gradient_is_the_plain_one(world, loss):
    changed = world.with_settings(**settings_of(loss, QUICK))
    rollouts = changed.sample()
    with in_float64(changed.trainer.model):
        ours, plain = our_gradient(changed, rollouts), plain_gradient(changed, rollouts)
    assert timing.relative_difference(ours, plain) < 1e-6
    assert all(parameter.dtype == torch.float32 for parameter in world.trainer.model.parameters())


def test_every_scorer_says_the_same_and_ours_holds_less():
    model = worlds.random_policy(5000, 104).eval()
    batch = log_probs.random_batch(5000, 4, 104)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    naive = log_probs.result(log_probs.naive, model, batch)
    ours = log_probs.result(log_probs.ours, model, batch)
    for found, expected in zip(ours, naive, strict=True):
        assert timing.relative_difference(found, expected) < 1e-5
    peaks = [
        timing.peak_live_bytes(log_probs.work(score, model, batch))
        for score in (log_probs.ours, log_probs.naive)
    ]
    assert peaks[0] < 0.75 * peaks[1]


def test_tokens_of_a_size_are_those_with_a_signal_and_prompts_count_once():
    scale = timing.Scale(n_prompts=4, group_size=3, max_tokens=5)
    world = worlds.random_world(scale, stops=False, prompt_tokens=7)
    rollouts = world.sample()
    assert growth.different_tokens(world, rollouts) == 4 * 7 + 12 * 5
    half = growth.without_signal(rollouts, 0.5)
    assert growth.different_tokens(world, half) == 2 * 7 + 6 * 5


def test_the_line_through_points_on_a_line():
    slope, r2 = growth.line([1, 2, 3], [5.0, 7.0, 9.0])
    assert slope == pytest.approx(2) and r2 == pytest.approx(1)
    assert growth.line([1, 2, 3], [0.0, 1.0, 0.0])[1] == pytest.approx(0, abs=1e-9)


@pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed: make bench has it")
def test_trl_s_gradient_is_ours(world):
    from benchmarks.trl_step import TRLStep

    rollouts = world.sample()
    theirs = TRLStep(world, "grpo", rollouts).gradient()
    assert timing.relative_difference(theirs, our_gradient(world, rollouts)) < 1e-5


def test_a_quick_run_writes_json_and_does_not_replace_what_is_on_record(tmp_path):
    threads = torch.get_num_threads()
    command = ["--only", "growth", "--quick", "--threads", str(threads)]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2 and "--out" in refused.output
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "growth.json").read_text())
    assert found["machine"]["threads"] == threads and found["tables"]["lines"]
    assert "Growth" in done.output


# --- the page ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        ({"median": 1.2345, "min": 1.0, "max": 20.04}, "1.23 (1–20)"),
        (12345.6, "12,300"),
        (0.01234, "0.0123"),
        (3.4e-8, "3.4e-08"),
        (0.0, "0"),
        (1024, "1,024"),
        ("ours", "ours"),
    ],
)
def test_figures_have_three_digits(value, shown):
    assert how_fast.display(value) == shown


def test_a_bench_that_was_never_run_is_an_error_that_says_so(tmp_path):
    with pytest.raises(how_fast.BenchMissingError, match=r"bench/step\.json .*make bench"):
        how_fast.step_markdown(tmp_path)


def test_bars_are_reached_missed_or_not_measured():
    bar = how_fast.Bar("times", 2.0, lambda benches: None)
    assert [bar.row(x)["reached"] for x in (2.0, 1.9, None)] == ["yes", "no", "not measured"]
    share = how_fast.Bar("share", 0.2, lambda benches: None, at_most=True)
    assert [share.row(x)["reached"] for x in (0.2, 0.21)] == ["yes", "no"]


def test_speed_ups_are_over_the_fastest_peer():
    rows = [
        {"setting": "random, stops", "sampler": f"generate, {cache}", "ours, times this": times}
        for cache, times in (("dynamic", 3.0), ("static", 2.5))
    ]
    benches = {"sampling": {"samplers": rows}}
    assert how_fast.speed_up("random, stops", "generate")(benches) == 2.5
    assert how_fast.speed_up("random, stops", "vLLM")(benches) is None


def test_the_page_shows_every_table_that_is_on_record():
    page = how_fast.bars_markdown(ROOT)
    assert page.count("\n| ") == 1 + len(how_fast.BARS)
    table = how_fast.sampling_markdown(ROOT)
    assert "| setting | sampler |" in table and "python -m benchmarks --only sampling" in table


def test_one_tiny_turn_reaches_nothing(monkeypatch):
    read = how_fast.read_bench

    def quick(copy, name):
        found = read(copy, name)
        return {**found, "command": found["command"] + " --quick"}

    monkeypatch.setattr(how_fast, "read_bench", quick)
    assert how_fast.bars_markdown(ROOT).count("| not measured |") == len(how_fast.BARS)


def test_the_parts_of_a_run_are_no_longer_than_the_run():
    whole, *parts = (row["seconds"] for row in course.measure(QUICK).tables["parts"])
    assert len(parts) == 3 and all(part > 0 for part in parts)
    assert sum(parts) < whole


def test_live_bytes_of_an_update_do_not_depend_on_the_threads(world):
    rollouts = world.sample()
    threads, found = torch.get_num_threads(), []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        found.append(step.update_live_bytes(world, rollouts))
        assert torch.get_num_threads() == n_threads
    torch.set_num_threads(threads)
    assert found[0] == found[1]


def test_a_table_that_a_bench_did_not_have_yet_is_an_error_that_says_so():
    with pytest.raises(how_fast.BenchMissingError, match=r"has no table 'new': run make bench"):
        how_fast.bench_markdown("update", "new", ROOT)


def test_rounding_is_float32_s_and_ours_is_no_worse_than_twice_the_plain_one_s() -> None:
    rows = rounding.measure(QUICK).tables["gradients"]
    found = {(row["setting"], row["gradient"]): row["from the exact one"] for row in rows}
    for setting in ("random, none stops", "pocket"):
        ours, plain = (found[setting, f"{whose}, float32"] for whose in ("ours", "plain"))
        assert 0 < ours < 2 * plain + 1e-6
        assert found[setting, "ours, float64"] < 1e-6


def test_a_turn_s_time_is_shared_out_among_the_kinds() -> None:
    rows = profile.measure(QUICK).tables["kinds"]
    for what in {row["what"] for row in rows}:
        shares = [row["share"] for row in rows if row["what"] == what and row["share"] is not None]
        assert sum(shares) == pytest.approx(1, abs=0.05)
        products = next(r for r in rows if (r["what"], r["kind"]) == (what, "matrix products"))
        assert products["operations"] > 10 and products["seconds"] > 0


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("aten::mm", "matrix products"),
        ("aten::bmm", "matrix products"),
        ("aten::index_select", "indexing and copies"),
        ("aten::logsumexp", "softmax and reductions"),
        ("aten::mul", profile.OTHER),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
    ],
)
def test_an_operation_is_of_one_kind(operation: str, kind: str) -> None:
    assert profile.kind_of(operation) == kind
