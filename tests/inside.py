"""What tests take from inside of the library, in one place: where it lies, and what is replaced for a test.

A test asks for what is public wherever that shows the same; this is for what has no public name. Whoever moves a
function within the library changes a line here, and no test.
"""

import contextlib

import pytest

from ukjax import (
    _blocks,
    _collector,
    _compiled,
    _dataset,
    _identity,
    _linalg,
    _lowering,
    _panels,
    _result,
    _rounding,
    _servo,
    _sharing,
    _trajectory,
    _waiting,
)
from ukjax._batch import _devices, _simulate_batch
from ukjax._expand import Certain as Certain
from ukjax._expand import Gathers as Gathers
from ukjax._expand import LoopTables as LoopTables
from ukjax._expand import Marks as Marks
from ukjax._expand import Repeats as Repeats
from ukjax._expand import Saves as Saves
from ukjax._expand import ScalarLoop as ScalarLoop
from ukjax._expand import (
    _fast_or_slow,
    _graph,
    _interpret,
    _piece,
    _scalar,
    _scalar_piece,
    _symmetric,
    _tiled,
)
from ukjax._expand import _loop as _scalar_loop
from ukjax._expand import are_clear as are_clear
from ukjax._expand import scalars as scalars
from ukjax._expand._loop import LoopOp
from ukjax._export import _export, _fmu
from ukjax._hybrid import _segment
from ukjax._integrate import _integrator, _march, _record, _replay, _run, _segments
from ukjax._lowering import _bind, _c, _entry, _gpu, _handler, _interpreter, _kernel, _schedule, _stages, _thread
from ukjax._lowering import _compile as _lowering_compile
from ukjax._manifold import _projection
from ukjax._plan import _plan, _search, _shooting
from ukjax._program import _compile, _plain, _substitute, _unbatch
from ukjax._sweep import _cases, _cluster, _design, _store
from ukjax._tune import _checkpoint, _loop, _objective
from ukjax.cli import _declared, _list, _output, _simulate
from ukjax.plot import _stage
from ukjax.rigid import (
    _chain,
    _coordinates,
    _dynamics,
    _frame,
    _from_file,
    _from_model,
    _layout,
    _linkage,
    _model,
    _slopes,
    _tree_scan,
    _tree_unrolled,
    _turns,
)


# What tests replace: limits, so that something small meets them, and functions, to see whether they are called.
REPLACEABLE = {
    "aged": (_collector, "_aged"),
    "assembly": (_gpu, "assembly"),
    "c_compiler": (_fmu, "c_compiler"),
    "c_part": (_c, "C_PART"),
    "cache_folder": (_output, "user_cache_path"),
    "has_compiler": (_compiled, "has_compiler"),
    "known_interface": (_handler, "KNOWN"),
    "controlled_by_matrices": (_servo._motion, "_by_matrices"),
    "gathered": (_fast_or_slow, "TILE"),
    "gpu_of": (_bind, "gpu_of"),
    "is_right": (_bind, "_is_right"),
    "handler_text": (_handler, "handler_text"),
    "most_aged": (_collector, "MOST"),
    "long_program": (_interpreter, "LONG"),
    "short_program": (_interpreter, "SHORT"),
    "largest_stack": (_interpreter, "LARGEST_STACK"),
    "often": (_lowering_compile, "CALLS_UNTIL_OPTIMISED"),
    "first_machine": (_bind, "compiled"),
    "optimised_machine": (_handler, "Machine"),
    "improved": (_lowering_compile.Tier, "improved"),
    "tier": (_lowering_compile.Tier, "__init__"),
    "panel_motion": (_panels, "panel_motion"),
    "part": (_kernel, "PART"),
    "portion": (_simulate_batch, "BYTES"),
    "projected_by_matrices": (_projection, "_by_pseudoinverse"),
    "read_armature": (_from_model, "at_joint"),
    "read_start": (_from_model, "_home"),
    "read_switches": (_from_model, "switches_of"),
    "report_after": (_waiting, "AFTER"),
    "silent": (_output, "SILENT"),
    "saved_tuning": (_checkpoint, "save"),
    "scalar_code": (_scalar, "OF_MACHINE_CODE"),
    "scalar_motion": (_fast_or_slow.FastOrSlowOp, "evaluate"),
    "directions_of_motion": (_fast_or_slow.FastOrSlowDirections, "evaluate"),
    "states_of_test": (_export, "STATES"),
    "sure_way": (_compiled.Compiled, "_go_the_sure_way"),
    "timed_run": (_simulate, "timed_run"),
    "longest_first": (LoopOp, "_longest_first"),
    "together": (_simulate_batch, "TOGETHER"),
    "written_out": (_compiled, "MOST_WRITTEN_OUT"),
    "unknown_fields": (_model, "_unknown"),
    "vector_width": (_stages, "vector_width"),
    "runs": (_integrator, "run"),
    "steps_back": (_replay, "reversed_steps"),
}


@contextlib.contextmanager
def replaced(**others):
    """What `REPLACEABLE` names is something else meanwhile; `lanes`: how many trajectories a CPU takes at once."""
    with pytest.MonkeyPatch.context() as patch:
        if "lanes" in others:
            patch.setitem(_devices.LANES, "cpu", others.pop("lanes"))
        for name, other in others.items():
            patch.setattr(*REPLACEABLE[name], other)
        yield


@contextlib.contextmanager
def evaluations(name):
    """The evaluations of an operation of `REPLACEABLE` meanwhile: whether each is one for a batch."""
    found, evaluate = [], getattr(*REPLACEABLE[name])
    spy = lambda self, form, *x: (found.append(any(form.batched)), evaluate(self, form, *x))[1]
    with replaced(**{name: spy}):
        yield found


def interrupted_tuning(step, error):
    """Raises it when a tuning has kept this step."""
    save = _checkpoint.save

    def saved(path, record, definition):
        save(path, record, definition)
        if record.done == step:
            raise error

    return replaced(saved_tuning=saved)


LABELS = _dataset.LABELS
STATS = _dataset.STATS
OF_EACH = _trajectory.OF_EACH
OPTIONAL = _trajectory.OPTIONAL
rounding_errors = _rounding.rounding_errors
failures_as_nan = _result.failures_as_nan
joined = _sharing.joined
separated = _sharing.separated
seldom_collecting = _collector.seldom_collecting
LANES = _devices.LANES
barrier = _devices.barrier
Tiles = _devices.Tiles
on_each = _devices.on_each
TOGETHER = _simulate_batch.TOGETHER
allocate_like = _simulate_batch._allocate_like
factorise = _blocks.factorise
order_of = _blocks.order_of
FEW_STATES = _fast_or_slow.FEW
evaluated_where_needed = _fast_or_slow._evaluated
guarded_by = _fast_or_slow.guarded_by
directional = _tiled.directional
CALLS = _interpret.CALLS
OF_CALLS = _interpret.OF_CALLS
is_followed = _interpret.is_followed
Graph = _graph.Graph
ELEMENTWISE = _interpret.ELEMENTWISE
interpret = _interpret.interpret
rule_of = _interpret.rule_of
Limits = _scalar.Limits
sizes_of_scan = _unbatch.sizes_of_scan
ScalarStep = _scalar_loop.ScalarStep
CertainScalars = _scalar_piece.CertainScalars
Program = _schedule.Program
parts_of = _schedule.parts_of
fused = _schedule.fused
EvalForm = _piece.EvalForm
traced = _piece.traced
ScalarPiece = _scalar_piece.ScalarPiece
NotScalar = _entry.NotScalar
ScalarProgram = _scalar.ScalarProgram
pivots = _symmetric.pivots
solve_symmetric = _symmetric.solve
InlinedProgram = _tiled.InlinedProgram
Lowering = _tiled.Lowering
tiled_dynamics = _tiled.tiled_dynamics
Constants = _entry.Constants
after_impact = _segment.after_impact
checksum_of = _identity.checksum_of
Dynamics = _march.Dynamics
IntegrationProblem = _march.IntegrationProblem
room_for = _march.room_for
vector_field = _march.vector_field
Integrator = _integrator.Integrator
PORTION = _run.PORTION
PARTS = _record.PARTS
Layout = _record.Layout
reversed_steps = _replay.reversed_steps
finer_of = _segments.finer_of
segment_of = _segments.segment_of
segments_of = _segments.segments_of
panel_motion = _panels.panel_motion
eliminate = _panels.eliminate
Point = _search.Point
descend = _search.descend
Curve = _shooting.Curve
PlanRequest = _plan.PlanRequest
given_start = _plan.given_start
problem_of = _plan.problem_of
PlanLimits = _search.Limits
MotionOptions = _shooting.MotionOptions
curvature = _shooting.curvature
independent_rows = _shooting.independent_rows
look = _shooting.look
jit_fast_compile = _compile.jit_fast_compile
light_options = _compile.light_options
not_tracing = _compile.not_tracing
packed = _plain.packed
shapes_of = _substitute.shapes_of
hoist = _substitute.hoist
LAPACK = _unbatch.LAPACK
unbatch_lapack = _unbatch.unbatch_lapack
controlled_motion = _servo._motion.controlled_motion
controlled_by_matrices = _servo._motion._by_matrices
Cases = _cases.Cases
Manner = _cluster.Manner
compute_chunk = _cluster._compute
design_of = _design.design_of
parse = _design.parse
opened = _store.opened
definition_of = _checkpoint.definition_of
Stopping = _loop.Stopping
Objective = _objective.Objective
Samples = _objective.Samples
speed_of = _simulate.speed_of
measured = _list._measured
work_of = _list._work
declared = _declared.declared
reported = _waiting.reported
working = _output.working
entry_of = _list.entry
rank_of = _list._rank
CACHE_VARIABLE = _output.VARIABLE
are_kept = _output.are_kept
keep_programs = _output.keep_programs
check_drawing = _stage.check
seen_from_afar = _stage.seen_from_afar
round_number = _stage._round
scene = _stage.scene
actuators_of = _model.actuators_of
switches_of = _model.switches_of
Branches = _slopes.Branches
in_tree = _coordinates.in_tree
LARGE = _dynamics.LARGE
SHORT = _dynamics.SHORT
free_motion = _dynamics.free
CONTACTS = _model.CONTACTS
FLAGS = _model.FLAGS
FOLLOWED = _model.FOLLOWED
LAWS = _model.LAWS
NAMED = _model.NAMED
NO_MATTER = _model.NO_MATTER
entries_of = _model.entries_of
unknown_fields = _model._unknown
fields_of = _model.fields_of
compiled = _from_file.compiled
reading_of = _from_file.reading_of
chain_of = _chain.Chain.of
rotation_vector = _frame.rotation_vector
read = _from_model.read
TreeLayout = _layout.Layout
Node = _layout.Node
armature = _linkage.armature
own_forces = _linkage.own_forces
posture = _linkage.posture
bias = _dynamics.bias
imbalance = _dynamics.imbalance
falling = _linkage.falling
slopes = _slopes.slopes
stacked = _linkage.stacked
mass_by_loops = _tree_scan.mass_matrix
solve_by_loops = _tree_scan.solve
times_by_loops = _tree_scan.times
mass_unrolled = _tree_unrolled.mass_matrix
joint_rows = _turns.rows
unsupported_features = _model.unsupported_features
pseudoinverse = _linalg.pseudoinverse
pseudoinverse_at = _linalg.pseudoinverse_at
pseudosolve = _linalg.pseudosolve
pseudosolve_at = _linalg.pseudosolve_at
whiten = _linalg.whiten
solve_jointly = _linalg.solve_jointly
in_tiles = _linalg.in_tiles
Row = _lowering.Row
Cuda = _gpu.Cuda
Loaded = _gpu.Loaded
OF_THREADS, REMAINDER = _gpu.OF_THREADS, _thread.REMAINDER
gpu_for = _bind.gpu_for
by_matrices, allows_machine_code = _bind.by_matrices, _bind.allows_machine_code
longest_first = LoopOp._longest_first
assembly = _gpu.assembly
Library = _lowering.Library
CodeFolder = _lowering_compile.CodeFolder
SureWay = _bind.SureWay
Traceable = _bind.Traceable
mended = _bind.mended
interface = _handler.interface
interface_of = _handler.interface_of
handler_text = _handler.handler_text
can_be_called = _handler.can_be_called
compiled_kernel = _lowering.compiled
Tier = _lowering_compile.Tier
Machine = _lowering_compile.Machine
vector_width = _stages.vector_width
wasm_module = _lowering.wasm_module
kernel = _lowering.kernel


def codes():
    """The numbers of codes that XLA can call, and of those that wait to be freed."""
    table = _handler._table()
    with table.lock:
        table.tidy()
        return sum(place.entry is not None for place in table.places), len(table.retired)


@contextlib.contextmanager
def without_codes():
    """XLA finds no code meanwhile."""
    places = [(place, place.entry) for place in _handler._table().places if place.entry is not None]
    for place, _ in places:
        place.entry = None
    yield
    for place, entry in places:
        place.entry = entry
