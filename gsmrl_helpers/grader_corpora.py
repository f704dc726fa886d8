r"""Answers to try a grader on: right ones, wrong ones, poison, and any number drawn at random.

A pair is (answer, gold, whether the answer is right). The same corpora serve the tests, the fuzz
run and the course's tables, so that all speak of the same things.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gsmrl_helpers.expression_reader import parse_answer


class Pair(NamedTuple):
    """An answer, the gold, and whether the answer is right."""

    answer: str
    gold: str
    is_right: bool


# --- numbers -----------------------------------------------------------------------------------


def ways_to_write(number: int) -> list[str]:
    """Forms of an integer that a grader has to accept."""
    plain, grouped = str(number), f"{number:,}"
    money = f"-${abs(number):,}" if number < 0 else f"${grouped}"
    return [
        *(
            plain,
            grouped,
            f"{plain}.",
            f"{plain}.00",
            f" {plain}\n",
            f"+{plain}".replace("+-", "-"),
        ),
        *(grouped.replace(",", "{,}"), grouped.replace(",", r"\,"), plain.replace("-", "−")),
        *(money, money.replace("$", r"\$"), f"$\\${grouped}$", f"{grouped}€", f"{plain} dollars"),
        *(f"{plain} eggs", rf"\text{{{plain} eggs}}", rf"{plain}\text{{ eggs}}", f"{plain} km/h"),
        *(f"{plain}%", rf"{plain}\%", f"{plain} percent", f"{plain} miles per hour"),
        *(f"**{plain}**", f"`{plain}`", f"${plain}$", rf"\({plain}\)", rf"\mathbf{{{plain}}}"),
        *(f"x = {plain}", f"$x={plain}$", f"Answer: {plain}", f"The answer is {plain}."),
        *(f"{2 * number}/2", rf"\frac{{{3 * number}}}{{3}}"),
    ]


def near_misses(number: int) -> list[int]:
    """One more, one less, and two neighbouring digits swapped where that changes it."""
    digits = str(abs(number))
    swapped = [
        int(digits[:i] + digits[i + 1] + digits[i] + digits[i + 2 :])
        for i in range(len(digits) - 1)
        if digits[i] != digits[i + 1]
    ]
    return [number + 1, number - 1, *((-n if number < 0 else n) for n in swapped[-1:])]


def random_number_pair(rng: random.Random) -> Pair:
    """A number written in an accepted way, or a near miss of it."""
    number = rng.randint(-(10 ** rng.randint(1, 12)), 10 ** rng.randint(1, 12))
    is_right = rng.random() < 0.5
    written = number if is_right else rng.choice(near_misses(number))
    return Pair(rng.choice(ways_to_write(written)), str(number), is_right)


PLAIN = [
    Pair(answer, "18", True) for answer in ("18", "$18", "18.00", "18 eggs", "**18**", "x = 18")
] + [Pair("17", "18", False), Pair("1,080", "1080", True), Pair("-5", "18", False)]


FORMS = [  # what a grader has to accept
    *(Pair(a, "18", True) for a in ("18 eggs", r"\text{18 eggs}", "**18**", "18.00", "18%")),
    *(Pair(a, "18", True) for a in (r"$\$18$", "x = 18", "The answer is 18.", r"\frac{36}{2}")),
    *(Pair("1,080", "1080", True), Pair("1{,}080", "1080", True), Pair(r"1\,080", "1080", True)),
    *(Pair("5€", "5", True), Pair("−5", "-5", True), Pair("-7 3/4", "-7.75", True)),
    *(Pair("½", "0.5", True), Pair("18¢", "18 cents", True)),
]

TRAPS = [  # what it must not fall for
    *(Pair(a, "18", False) for a in ("17=18", "17 or 18", "17, 18", "17\n18", "1 8", "1,8")),
    *(Pair(a, "18", False) for a in ("9+9", "18!", "18 million", "18 cents", "not 18", "1.8e1")),
    Pair(" ".join(map(str, range(1, 41))), "18", False),
    *(Pair("18%", "0.18", False), Pair("-7 3/4", "-6.25", False), Pair("1.080", "1080", False)),
    Pair("12345678901234567891", "12345678901234567890", False),
    Pair("0.1", "0.1000000000000000055511151231257827", False),
    *(Pair(a, "18", False) for a in ("18 sextillion", "18 elevenths", "18 possibly")),
    *(Pair("nan", "nan", False), Pair("", "", False)),
]


# --- expressions -------------------------------------------------------------------------------

EXPRESSIONS = [
    Pair(r"\sqrt{12}", r"2\sqrt{3}", True),
    Pair("2√3", r"2\sqrt{3}", True),
    Pair("sqrt(3)/2", r"\frac{\sqrt{3}}{2}", True),
    Pair(r"\frac{\sqrt3}2", r"\frac{\sqrt{3}}{2}", True),
    Pair(r"\frac{3}{\sqrt{12}}", r"\frac{\sqrt{3}}{2}", True),
    Pair("π/3", r"\frac{\pi}{3}", True),
    Pair(r"2\pi \text{ cm}", r"2\pi", True),
    Pair(r"2\sqrt{3}\text{ cm}^2", r"2\sqrt{3}", True),
    Pair(r"\sqrt{5+2\sqrt{6}}", r"\sqrt{2}+\sqrt{3}", True),
    Pair(r"\sqrt{2}-1", r"\frac{1}{1+\sqrt{2}}", True),
    Pair(r"\sqrt[3]{2}", "2^{1/3}", True),
    Pair(r"$(x+1)^2$", "x^2+2x+1", True),
    Pair("y = (x+1)(x+1)", "x^2+2x+1", True),
    Pair(r"(x-y)(x^2+x\cdot y+y^2)", "x^3-y^3", True),
    Pair(r"\left[0, 1\right)", "[0,1)", True),
    Pair(r"[3,\infty)\cup(-\infty,2]", r"(-\infty, 2] \cup [3, \infty)", True),
    Pair("2, 1", r"\{1,2\}", True),
    Pair(r"(\frac{2}{4}, -3.0)", r"(\frac{1}{2}, -3)", True),
    Pair(r"3\sqrt{2}", r"2\sqrt{3}", False),
    Pair(r"-2\sqrt{3}", r"2\sqrt{3}", False),
    Pair("3.4641016151377544", r"2\sqrt{3}", False),
    Pair("1.0471975511965976", r"\frac{\pi}{3}", False),
    Pair(r"\frac{\pi}{4}", r"\frac{\pi}{3}", False),
    Pair("x^2+2x", "x^2+2x+1", False),
    Pair("y^2+2y+1", "x^2+2x+1", False),
    Pair("[0,1]", "[0,1)", False),
    Pair("(0,1)", "[0,1)", False),
    Pair(r"\{1,2,3\}", r"\{1,2\}", False),
    Pair("(2,1)", "(1,2)", False),
    Pair("1 or 2", r"\{1,2\}", False),
    Pair(r"2\sqrt{3} or 3\sqrt{2}", r"2\sqrt{3}", False),
    Pair(r"5=2\sqrt{3}", r"2\sqrt{3}", False),
    *(
        Pair(rf"2\sqrt{{3}}{unit}", r"2\sqrt{3}", False)
        for unit in (
            *(r"\text{/2}", r"\text{1/2}", r"\text{\frac12}", r"\mbox{¾}", r"\text{½}"),
            *(r"\mathrm{/9}", r"\text{}^2", r"\text{ }^{2}", r"\text{/2}^2", r"\text{½ cm}"),
        )
    ),
    Pair("nan", "nan", False),
    Pair("N/A", "N/A", False),
]

REFUSED = [  # right answers that are refused, knowingly: the price of the rules
    *(Pair("She has 18 eggs", "18", True), Pair("18, I think", "18", True)),
    *(Pair("1 080", "1080", True), Pair("2 million", "2000000", True)),
    *(Pair(r"6\cdot\frac{1}{2}", "3", True), Pair("0.18 dollars", "18 cents", True)),
    *(Pair("5!", "5!", True), Pair("9^{9^9}", "9^{9^9}", True), Pair("x^7", "x^7", True)),
    *(Pair("2^{1/8}", "2^{1/8}", True), Pair(r"\sqrt{1+x^2}", r"\sqrt{x^2+1}", True)),
    *(Pair(r"1+\sin(x)", r"\sin(x)+1", True), Pair(r"\log_2(3)", r"\log_2(3)", True)),
    *(Pair("0 < x < 1", "(0,1)", True), Pair(r"2\sqrt{3} cm", r"2\sqrt{3}", True)),
]

_LEAVES = ["x", "y", r"\pi", r"\sqrt{2}", r"\sqrt{3}", "2", "3", "5", r"\frac{1}{2}", "0.5"]


def random_expression(rng: random.Random, depth: int) -> str:
    """An expression of the reader's grammar; a deep one may be beyond its bounds."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(_LEAVES)
    a, b = random_expression(rng, depth - 1), random_expression(rng, depth - 1)
    forms = [f"{a}+{b}", f"({a}+{b})", f"({a}-2({b}))", f"({a})({b})", rf"\frac{{{a}}}{{{b}}}"]
    return rng.choice([*forms, f"({a}+{b})^{rng.choice([2, 3, -1])}", f"{a}+{b}"])


def rewritten(rng: random.Random, expression: str) -> str:
    """The same value, written in another way."""
    k = rng.randint(2, 5)
    return rng.choice(
        [
            rf"\frac{{{k}({expression})}}{{{k}}}",
            f"({expression})-{k}+{k}",
            f"{k}+({expression})-{k}",
            rf"\left({expression}\right)",
            f"-(-({expression}))",
            rf"\sqrt{{{k * k}}}\cdot({expression})/{k}",
            rf"\frac{{{expression}}}{{(1+\sqrt{{{k}}})(\sqrt{{{k}}}-1)}}\cdot {k - 1}",
            rf"(\sqrt{{{k}}}+x)({expression})-(\sqrt{{{k}}}+x-1)({expression})",
        ]
    )


def random_expression_pair(rng: random.Random) -> Pair:
    """An expression, and the same or another one: right in two cases of three."""
    gold = random_expression(rng, rng.choice([1, 2, 2, 3, 3, 4]))
    answer = rewritten(rng, gold)
    if rng.random() < 1 / 3:
        return Pair(f"({answer})+{rng.choice(['1', '0.001', 'x^2'])}", gold, False)
    return Pair(answer, gold, True)


def comparable_pairs(n: int, seed: int = 0) -> list[Pair]:
    """Pairs of expressions that both pass the gate, and have a gold that is no number."""
    rng, pairs = random.Random(seed), []
    while len(pairs) < n:
        pair = random_expression_pair(rng)
        answer, gold = parse_answer(pair.answer), parse_answer(pair.gold)
        if answer and gold and gold.items[0].operation != "leaf":
            pairs.append(pair)
    return pairs


# --- poison ------------------------------------------------------------------------------------

POISON = [
    *("9" * 200_000, "1e999999999", "9" * 5_000 + "/" + "9" * 5_000, "9**9**9**9"),
    *("2^{2^{2^{2^{2^{99}}}}}", "(((9^9)^9)^9)^9", "9" * 50 + "!" * 50, "9!!!!", "2^{-9^{9}}"),
    *("(" * 200_000, "(" * 60 + "1" + ")" * 60, "a" * 100_000, "{" * 200_000, "{}" * 100_000),
    *("1," * 100_000, "1, " * 39 + "1", "1 " * 99, "-" * 119 + "1", "x" * 119, "x^" * 59 + "2"),
    *("\t" * 199 + "x", "18" + "\t" * 190 + "!", "18 " + "ab " * 60, "18" + " /" * 90),
    *("x" + " " * 190 + "=", "the " * 49, "$" * 199, "\\text" * 39, r"\frac{" * 33),
    *(r"\sqrt{" * 19 + "2" + "}" * 5, r"\frac1" * 19 + "2", "(x+y)^{64}", "(1+x)^8(1+y)^8"),
    *(r"\boxed{" * 30_000, r"\boxed{" * 30_000 + "}" * 30_000, r"\boxed" + " " * 200_000),
    *(r"\boxed{18}" * 20_000 + r"\boxed{", "</think> <answer>" * 20_000),
    *("</think>" + "\n" * 100_000, "</think> " * 20_000 + "<answer>", "18 " + "eggs " * 39),
    *("__import__('os').system('exit 1')", "\x00\ud800\u202e", "√" * 119, "∞" * 119),
]


# --- measuring ---------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What a judge said of a pair, and the CPU seconds of this thread that it took."""

    is_right: bool
    seconds: float


def timed_verdicts(judge: Callable[[str, str], bool], pairs: Iterable[Pair]) -> list[Verdict]:
    """Ask `judge(answer, gold)` about each pair; time is the CPU's, whatever else is running.

    As in `timeit`, garbage is not collected meanwhile: that takes as long as the process is large.
    """
    verdicts, was_enabled = [], gc.isenabled()
    gc.disable()
    try:
        for pair in pairs:
            started = time.thread_time()
            is_right = judge(pair.answer, pair.gold)
            verdicts.append(Verdict(is_right, time.thread_time() - started))
    finally:
        if was_enabled:
            gc.enable()
    return verdicts


def plain_rate(
    reward_fn: Callable[[str, str], dict[str, float]], repeats: int = 15, n_copies: int = 60
) -> float:
    """Plain answers a second, of the fastest batch of some: the one least disturbed."""
    text = " Some thinking about it." * 40 + "</think> <answer> {} </answer>"
    batch = [(text.format(pair.answer), pair.gold) for pair in PLAIN * n_copies]
    seconds = []
    for _ in range(repeats):
        started = time.thread_time()
        for response, gold in batch:
            reward_fn(response, gold)
        seconds.append(time.thread_time() - started)
    return len(batch) / min(seconds)


def math_verify_alone(answer: str, gold: str) -> bool:
    r"""What math-verify says by itself, used as its README shows, its time limit of 5 s a signal.

    In the main thread only. Both are given in a box, so that it is not asked to find the answer.
    """
    from math_verify import parse, verify

    return bool(verify(parse(rf"\boxed{{{gold}}}"), parse(rf"\boxed{{{answer}}}")))


def math_verify_without_limit(answer: str, gold: str) -> bool:
    """The same without its time limit, as worker threads need it: it may never return."""
    from math_verify import parse, verify

    texts = (rf"\boxed{{{text}}}" for text in (gold, answer))
    parsed = [parse(text, parsing_timeout=None) for text in texts]
    return bool(verify(*parsed, timeout_seconds=None))
