"""The experiments run, print what the paper says beside what we measure, and draw."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import experiments.defalco2008_pseudoinverse as defalco
import experiments.identify_scara
import experiments.liu2015_servo
import experiments.orsino2017_recursive
import experiments.pages
import experiments.tune_baumgarte
import experiments.tune_servo
import experiments.xu2017_scara
import experiments.zhao2018_flexible_joint
import ukjax
from experiments import _figures, _report
from models.scara import Scara

from ..helpers import command, standard_promotion


def run(module, capsys, out, **options):
    """What an experiment prints in a wide terminal."""
    with standard_promotion(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_report, "console", Console(width=200))
        assert command(module.main, "--out", out, **options) == 0
    return capsys.readouterr().out


def drawn(out):
    for path in out.glob("*.png"):
        with Image.open(path) as image:
            assert len(np.unique(np.asarray(image.convert("L")))) > 20
    return sorted(path.stem for path in out.glob("*.png"))


@pytest.mark.long
def test_xu2017(capsys, tmp_path):
    shown = run(experiments.xu2017_scara, capsys, tmp_path)
    row = lambda name: next(line for line in shown.splitlines() if name in line)
    assert "30.7535, -54.9004, 24.1468" in row("start on the helix")
    assert "1.093e-03 (8e-4 at t = 14.6 s)" in row("largest x error")
    assert "2.045e-04" in row("largest y error")
    assert "0.0100" in row("largest z error")
    emulated = float(row("ode45").split("│")[3])
    assert 7e-3 <= emulated <= 1.2e-2
    assert "-0.881 to 0.814" in row("Qc1")
    assert "4.905 to 4.905" in row("Qc4")
    names = drawn(tmp_path)
    assert [int(re.match(r"figure(\d+)", name)[1]) for name in names] == list(range(2, 11))


@pytest.mark.long
def test_orsino2017(capsys, tmp_path):
    shown = run(experiments.orsino2017_recursive, capsys, tmp_path, sizes=(4, 8, 16))
    row = lambda name: next(line for line in shown.splitlines() if name in line).split("│")[3].strip()
    assert row("freedoms of levels 1 to 3") == "18, 9, 3"
    assert row("a dependent level") == "rank 0, trace P 3"
    for name in ("recursion against one shot", "P against I - B^+ B"):
        assert float(row(name).split()[0]) < 1e-12
    for name in ("no noise: state", "R = 0.1: state"):
        assert all(float(x) < 1e-12 for x in row(name).split(","))
    assert float(row("R small").split("^")[1]) == pytest.approx(1.0, abs=0.01)
    assert float(row("R large").split("^")[1]) == pytest.approx(-1.0, abs=0.02)
    freedoms = {"Active RR chain": 2, "Slider-crank": 1, "Five-bar": 2, "Three legs": 2, "3RRR mechanism": 3}
    for name, count in freedoms.items():
        assert next(line for line in shown.splitlines() if f"│ {name}" in line).split("│")[5].strip() == str(count)
    assert drawn(tmp_path) == ["clearance", "cost", "forces", "levels"]


@pytest.mark.long
def test_tuned_gains_are_the_linear_quadratic_regulator(capsys, tmp_path):
    shown = run(experiments.tune_baumgarte, capsys, tmp_path)
    miss = float(re.search(r"within ([\d.e-]+) % of the theory", shown)[1])
    assert miss < 1.0
    losses = {name: float(line.split("│")[5]) for line in shown.splitlines() for name in
              ("paper", "critical damping", "tuned by gradient", "theory") if f"│ {name}" in line}  # fmt: skip
    assert losses["tuned by gradient"] < losses["critical damping"] < losses["paper"]
    assert losses["tuned by gradient"] < 1.001 * losses["theory"]
    assert drawn(tmp_path) == ["convergence", "decay"]


def test_flop_formulas_reproduce_table_6_and_table_5_is_not_table_1():
    for name, counts in defalco.TABLE_6.items():
        assert tuple(defalco.FLOPS[name](m, n) for m, n in defalco.SIZES) == counts
    off = [cells[0] for cells in defalco.operation_rows() if "off by" in cells[1]]
    assert off == ["UdwadiaPhohomsiri (43)"]


@pytest.mark.long
def test_what_xla_counts_and_what_the_paper_prints():
    (name, small, *_) = defalco.flop_rows()[0]
    assert name == "UdwadiaKalaba (31)"
    assert small.startswith("573 | ")
    shown = {row[0]: row[2] for row in defalco.misprint_rows()}
    assert "off by 2.0 as printed" in shown["(27), the sign of lambda"]


@pytest.mark.long
def test_runs_of_the_parallelogram_and_their_pictures(tmp_path):
    run = defalco.Runner()
    free, held = (
        run(ukjax.pseudoinverse.RowGramSchmidt(), 1e-8, t1=2.0),
        run(ukjax.pseudoinverse.RowGramSchmidt(), 1e-8, projected=True, t1=2.0),
    )
    assert defalco.outcome(free) == defalco.outcome(held) == "correct"
    assert np.max(defalco.violation(held)) < 1e-28 < np.max(defalco.violation(free))
    assert held.evaluations == 14 * int(held.trajectory.stats["num_steps"])
    assert "correct, " in defalco.described(free)
    lost = free._replace(correct_to=1.5)
    assert defalco.outcome(lost) == "correct to 1.5 s"
    pictures = {"a": defalco.violation_figure({"free": free, "held": held}), "b": defalco.error_figure({"free": free})}
    experiments._report.save(pictures, tmp_path)
    assert drawn(tmp_path) == ["a", "b"]


def test_tables_are_reported_as_markdown_too(tmp_path):
    experiments._report.table("Of another experiment", ("a",), [("b",)])
    out = tmp_path / "out"
    assert command(lambda: experiments._report.start("", "none"), "--out", out) == 0
    experiments._report.table("One [m]", ("", "we measure"), [("a | b", "1e-3"), ("x_1", "2")])
    experiments._report.save({}, out)
    want = "## One [m]\n\n|  | we measure |\n|---|---|\n| a \\| b | 1e-3 |\n| x\\_1 | 2 |\n"
    assert (out / "report.md").read_text() == want
    assert [path.name for path in out.iterdir()] == ["report.md"]
    assert experiments.pages.page("xu2017_scara", want).endswith(want)


def test_pictures_come_in_every_format_and_their_captions_are_in_the_report(tmp_path):
    figure, axes = _figures.over_time("x [m]", "y [m]")
    for axis in axes:
        axis.plot([0.0, 1.0], label="numerical")
    _figures.legend(figure)
    _figures.captioned(figure, "Motion of [one] bead.")
    options = ("--out", tmp_path, "--format", "svg", "--format", "pdf")
    assert command(lambda: experiments._report.start("", "none"), *options) == 0
    experiments._report.save({"two_beads": figure}, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.md", "two_beads.pdf", "two_beads.svg"]
    report, caption = (tmp_path / "report.md").read_text(), "Motion of \\[one\\] bead."
    assert report == f"![{caption}](two_beads.svg)\n\n{caption}\n"
    assert experiments.pages.page("xu2017_scara", report).endswith(f"\n\n**two beads**: {caption}\n")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["numerical"]
    assert figure.get_suptitle() == ""
    assert command(lambda: experiments._report.start("", "none"), "--out", tmp_path) == 0
    assert experiments._report.formats == ["png"]


@pytest.mark.parametrize(
    "module", [experiments.xu2017_scara, experiments.tune_servo, experiments.identify_scara, defalco]
)
def test_a_folder_that_cannot_be_written_is_refused_at_once(module, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert command(module.main, "--out", tmp_path / "file") == 2
    assert "cannot be written to" in capsys.readouterr().err


def number(text):
    return float(re.search(r"-?\d[\d.]*(e[-+]\d+)?", text)[0])


@pytest.mark.long
def test_liu2015(capsys, tmp_path):
    shown = run(experiments.liu2015_servo, capsys, tmp_path)
    row = lambda name: next(line for line in shown.splitlines() if name in line).split("│")[3]
    assert number(row("eq. 47 [N], no stabilisation")) < 1e-9
    assert all(float(x) < 1e-8 for x in row("x3, y3 [m]").split(","))
    assert number(row("largest gap [m]")) < 1e-10
    assert row("angles at t = pi").split() == ["90.0000,", "0.0000,", "0.0000,", "0.0000,", "-90.0000"]
    # By an inverse dynamics of the chain that shares no code with this.
    ranges = [(0.44, 10.13), (2.88, 4.90), (-8.00, -4.43), (4.63, 9.67), (-4.16, 0.46), (-5.11, 0.18)]
    for i, want in enumerate(ranges):
        low, high = re.search(r"self-consistent (\S+) to (\S+)", row(f"u{i + 1} [N m]")).groups()
        assert (float(low), float(high)) == pytest.approx(want, abs=0.01)
    assert number(row("literal reading")) > 1.0
    assert drawn(tmp_path) == ["figure04_to_08_links", "figure09_to_14_controls", "literal_reading", "spring"]


@pytest.mark.long
def test_zhao2018_flexible_joint(capsys, tmp_path):
    shown = run(experiments.zhao2018_flexible_joint, capsys, tmp_path)
    row = lambda name: next(line for line in shown.splitlines() if name in line).split("│")[3]
    assert number(row("below 1 % from")) == pytest.approx(0.25 * np.log(100), abs=0.02)
    assert all(number(part.rsplit(" ", 1)[1]) < 1e-7 for part in row("largest difference [rad/s]").strip().split(";"))
    assert abs(number(row("torque of the motors, literally"))) > 0.1
    assert drawn(tmp_path) == ["figure10_error", "figure11_velocities"]


@pytest.mark.long
@pytest.mark.parametrize("of", ["robots", "manipulator"])
def test_tuned_servos_are_better_on_what_they_have_not_seen_and_cost_less(of, tmp_path):
    tune_servo = experiments.tune_servo
    robots = of == "robots"
    samples = tune_servo._tuned_robots.samples if robots else tune_servo._tuned_manipulator.samples
    with standard_promotion():
        problem = tune_servo.robots(7) if robots else tune_servo.manipulator(9)
        got = tune_servo.compare(problem, samples(20, 1), 600)
        tune_servo.rows(got)
    # The experiment measures what a Jacobian costs, and finds less than a fifth of the search's cost. No clock here: a
    # Jacobian counts as one simulation, and one more for the tangent of every number: more than it costs on an idle
    # machine.
    numbers = sum(x.size for x in jax.tree_util.tree_leaves(problem.params))
    gradient, searched = dataclasses.replace(got, ratio=1.0 + numbers).costs()
    assert got.unseen["by gradient"] < got.unseen["by hand"] / 2
    assert got.unseen["by gradient"] < got.unseen["one knob"]
    assert gradient <= min(searched, got.searched_losses.size) / 3


@pytest.mark.long
def test_identified_parameters_lie_in_their_intervals_as_often_as_they_say(capsys, tmp_path):
    shown = run(experiments.identify_scara, capsys, tmp_path)
    for name in experiments.identify_scara.BASE:
        line = next(line for line in shown.splitlines() if f"│ {name} [" in line).split("│")
        assert float(line[3]) == pytest.approx(float(line[2]), rel=2e-3)
        assert 92.0 <= number(line[6]) <= 98.0  # 400 draws: 95 % within 3 standard deviations
    assert 92.0 <= float(re.search(r"below it in ([\d.]+) %", shown)[1]) <= 98.0
    assert "has rank 5" in shown
    assert float(re.search(r"any of them (\S+)\.", shown)[1]) < 1e-12
    assert drawn(tmp_path) == ["convergence", "fit"]


def test_the_five_numbers_make_the_same_robot():
    identify = experiments.identify_scara
    other = Scara(m1=11.0, m2=7.0, m3=4.0, m4=0.9, r1=0.07, r2=0.2, Iz1=0.4, Iz2=0.2, Iz3=0.05, Iz4=0.01)
    q, v, t = jnp.array([0.3, -1.0, 0.4, 0.1]), jnp.array([1.0, -0.5, 2.0, 0.3]), jnp.zeros(())
    five = identify.Base(identify.base(other))
    np.testing.assert_allclose(five.mass(q, t), other.mass(q, t), atol=1e-14)
    np.testing.assert_allclose(five.force(q, v, t), other.force(q, v, t), atol=1e-13)
