"""Both backends tell the same story under the same names."""

import ast
import difflib
import importlib
import inspect
from types import ModuleType

import pytest

from d2l_ext import mirror
from d2l_ext.exercises import EXERCISES
from d2l_ext.exercises.engine import Exercise
from d2l_ext.notebooks import ROOT, solution_of, sources

# what one backend has and the other has not, or has otherwise: why.
# Names as in GPT.generate; arguments called rngs or seed may be extra in
# JAX anywhere, since it keeps no random state of its own
DIFFERENCES = {
    'count_compilations': 'only JAX compiles',
    'init_cache': 'a torch cache grows from an empty dict per block',
    'cached_forward': 'in torch a method, GPT.forward_cached, that changes '
                      'the caches it is given',
    'GPT.forward_cached': 'in JAX a function, cached_forward, of buffers in '
                          'and buffers out',
    'embed': 'a part of forward_blocks, compiled',
    'enter_block': 'a part of forward_blocks, compiled once for all blocks',
    'leave_block': 'a part of forward_blocks, compiled once for all blocks',
    'read_out': 'a part of forward_blocks, compiled',
    'forward_chunk': 'the body that cached_forward compiles',
    'jitted_chunk': 'forward_chunk compiled, buffers kept',
    'donated_chunk': 'forward_chunk compiled, buffers given away',
    'GPT.CausalAttention.forward_step': 'torch grows a dict; JAX writes into '
                                        'stacked buffers at t',
    'GQAAttention.forward_step': 'as that of CausalAttention',
    'attention_mask': 'torch is told the device, JAX places arrays itself',
    'row_times': 'a product that only torch.compile makes fast',
    'linear': 'chooses between row_times and the product',
    'RowLinear': 'a linear map that calls linear',
    'twin': 'a model with RowLinear',
    'fast_block': 'a region that torch compiles once for all blocks',
    'fast_step': 'fast_pass compiled; in JAX fast_loop is',
    'may_vary': 'JAX compiles for a room that is rounded up',
    'can_compile': 'JAX always can',
    'fast_parts': 'JAX has one way, always compiled',
    'times_turned': 'a torch tensor keeps its shape in any layout',
    'fast_modules': 'torch multiplies by weights as they lie',
    'attend_by_head': 'torch has a fast kernel for a CPU',
    'fast_copies': 'what fast_modules keeps',
    'round_up': 'torch compiles for a room of any length',
    'fast_prefill': 'in torch fast_pass, not compiled',
    'fast_loop': 'in torch a loop over fast_step',
    'sample_token': 'JAX draws with a key that the caller hands over',
}
JAX_EXTRA = {'rngs', 'seed'}
SAME_METHOD = {'__call__': 'forward'}  # the frameworks' own names for it

# --- The notebooks ----------------------------------------------------------

PAIRS, ALONE = mirror.pairs(ROOT / 'notebooks')


def test_every_notebook_has_its_partner():
    assert not ALONE, 'no partner in the other backend: ' + ', '.join(
        path.name for path in ALONE)


@pytest.mark.parametrize('name', PAIRS)
def test_a_pair_tells_one_story(name):
    text = mirror.differences(*PAIRS[name])
    assert not text, '\n' + text


@pytest.mark.parametrize('path', sources(), ids=lambda path: path.stem)
def test_a_notebook_keeps_the_rules(path):
    broken = mirror.rule_breaks(path)
    assert not broken, '\n' + '\n'.join(broken)


@pytest.mark.parametrize('path', sources(), ids=lambda path: path.stem)
def test_exercises_have_all_that_belongs_to_them(path):
    broken = mirror.exercise_breaks(path, EXERCISES)
    assert not broken, '\n' + '\n'.join(broken)


def test_every_exercise_belongs_to_a_lesson():
    assert {exercise.lesson for exercise in EXERCISES.values()} <= set(PAIRS)


SOLUTIONS = ROOT / 'notebooks' / 'solutions'
with_solutions = pytest.mark.skipif(
    not SOLUTIONS.is_dir(), reason='this course has no notebooks/solutions/')


@with_solutions
@pytest.mark.parametrize('path', sources(), ids=lambda path: path.stem)
def test_every_exercise_has_its_solution(path):
    ids = [id for id, exercise in EXERCISES.items()
           if exercise.lesson == path.stem.rpartition('_')[0]]
    broken = mirror.solution_breaks(solution_of(path), ids)
    assert not broken, '\n' + '\n'.join(broken)


@with_solutions
def test_solutions_of_a_pair_tell_one_story():
    found, alone = mirror.pairs(SOLUTIONS)
    assert not alone
    text = ''.join(mirror.differences(*paths) for paths in found.values())
    assert not text, '\n' + text


def test_no_executed_notebook_lies_among_the_sources():
    assert not [path for path in (ROOT / 'notebooks').rglob('*.ipynb')
                if '.ipynb_checkpoints' not in path.parts]


# --- Toy notebooks ----------------------------------------------------------

TOY = '''# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# (sec-toy)=
# # A toy
#
# What does it cost?

# %%
import math

sizes = {'small': dict(n=2), 'full': dict(n=3)}

# %% exercise="cost"
print('n', 2, 'loss', 1.5)

# %% [markdown] tags=["expected"]
# ```output small
# n 2 loss 1.5±0.1
# ```
'''
OWN = '''
# %% tags=["backend-only"] why="views exist in one of them only"
print('a view of', 3)

# %% [markdown] tags=["expected"]
# ```output
# a view of 3
# ```
'''


def pair(folder, torch, jax):
    paths = folder / '01_toy_torch.py', folder / '01_toy_jax.py'
    for path, text in zip(paths, (torch, jax), strict=True):
        path.write_text(text)
    return paths


@pytest.mark.parametrize('torch, jax', [
    (TOY, TOY.replace("print('n', 2", "print('n', 3").replace(
        'n 2 loss 1.5±0.1', 'n 3 loss <1.7')),
    (TOY + OWN, TOY),
    (TOY + OWN, TOY.replace('# %% exer', OWN.replace('3', '5').lstrip()
                            + '\n# %% exer')),
], ids=['other numbers', 'a cell of its own', 'own cells elsewhere'])
def test_what_backends_may_differ_in(tmp_path, torch, jax):
    assert mirror.differences(*pair(tmp_path, torch, jax)) == ''


@pytest.mark.parametrize('old, new, line', [
    ('# # A toy', '# ## A toy', '+heading ## A toy'),
    ('sec-toy', 'sec-game', '+anchor sec-game'),
    ('exercise="cost"', 'exercise="price"', '+exercise price'),
    ('n 2 loss', 'n 2: loss', '+output small: n #: loss #'),
    ('output small', 'output full', '+output full: n # loss #'),
    ('it cost?', 'it cost? ', '+What does it cost? '),
    ('#\n# What', '# %% [markdown]\n# What', '+--- markdown cell'),
])
def test_each_kind_of_difference_is_seen(tmp_path, old, new, line):
    assert old in TOY
    text = mirror.differences(*pair(tmp_path, TOY, TOY.replace(old, new)))
    assert line in text.split('\n'), text
    assert '--- 01_toy_torch.py' in text and '+++ 01_toy_jax.py' in text


def test_a_notebook_alone_is_seen(tmp_path):
    pair(tmp_path, TOY, TOY)
    (tmp_path / '02_toy_torch.py').write_text(TOY)
    (tmp_path / '03_toy.py').write_text(TOY)
    found, alone = mirror.pairs(tmp_path)
    assert list(found) == ['01_toy']
    assert [path.name for path in alone] == ['02_toy_torch.py', '03_toy.py']


def test_the_toy_keeps_the_rules(tmp_path):
    assert mirror.rule_breaks(pair(tmp_path, TOY + OWN, TOY)[0]) == []


@pytest.mark.parametrize('old, new, message', [
    ('# ---\n\n', '#   execution:\n#     allow_errors: true\n# ---\n\n',
     'allow_errors'),
    ('name: python3', 'name: my-venv', "kernelspec 'my-venv'"),
    ('# %% exercise="cost"', '# %% tags=["skip-execution"]', 'hides a cell'),
    ('# %% exercise="cost"', '# %% nbmake={"mock": {"n": 2}}', 'behind'),
    ('# %% exercise="cost"', '# %% tags=["backend-only"] why=""', 'must say'),
    ('import math\n', 'import math\n# %matplotlib inline\n', 'a magic?'),
    ('import math\n', 'import math\n!ls\n', 'a magic?'),
    ('import math\n', 'math = 3\n', 'cells that import: 0'),
    ("print('n'", "import json\nprint('n'", 'cells that import: 2'),
    ("'full'", "'big'", 'no sizes cell'),
    ('# ```output small', '# ```output smal', 'unknown label'),
    ('# %% exercise="cost"', '#%% exercise="cost"', 'does not write back'),
    ('# %% exercise="cost"', '# %%\n\n# %% exercise="cost"', 'an empty code'),
])
def test_each_broken_rule_is_named(tmp_path, old, new, message):
    assert old in TOY
    broken = mirror.rule_breaks(pair(tmp_path, TOY.replace(old, new), '')[0])
    assert any(message in text for text in broken), broken


# --- A toy with an exercise --------------------------------------------------

PRICE = Exercise('price', '01_toy', 'The Price', ('paper',), 5,
                 ('Count it.', 'Count it\nagain.'), ())
WITH_EXERCISE = TOY.replace('exercise="cost"', '') + '''
# %% [markdown]
# ### Exercise: The Price
#
# *[paper], about 5 minutes.*

# %% [markdown]
# <details>
# <summary>Hint 1</summary>
#
# Count it.
#
# </details>
#
# <details>
# <summary>Hint 2</summary>
#
# Count it again.
#
# </details>

# %% exercise="price"
price = ...

# %%
d2l.attempt('price', price=price)

# %% [markdown] tags=["expected"]
# ```output
# price: not attempted
# ```
'''


def exercise_breaks(tmp_path, text, exercises):
    path = tmp_path / '01_toy_torch.py'
    path.write_text(text)
    return mirror.exercise_breaks(path, exercises)


def test_a_whole_exercise_breaks_no_rule(tmp_path):
    assert exercise_breaks(tmp_path, WITH_EXERCISE, {'price': PRICE}) == []
    hints, own = '# %% [markdown]\n# <details>', (
        '# %% [markdown] tags=["backend-only"] why="views"\n# Views, too.\n\n')
    assert exercise_breaks(tmp_path, WITH_EXERCISE.replace(hints, own + hints),
                           {'price': PRICE}) == []
    assert exercise_breaks(tmp_path, TOY, {}) == [
        'cost: d2l_ext.exercises does not know it',
        "exercises ['cost'], registered for the lesson []"]


@pytest.mark.parametrize('old, new, message', [
    ('### Exercise: The Price', '### The Price', 'no line'),
    ('about 5 minutes', 'about 50 minutes', 'no line'),
    ('# Count it again.', '# Count it twice.', 'not those of d2l.hint'),
    ('<summary>Hint 2</summary>', '', 'not those of d2l.hint'),
    ("d2l.attempt('price'", "d2l.attempt('cost'", 'is no d2l.attempt'),
    ('# price: not attempted', '# price: right', 'not expected that'),
    ('# %%\nd2l', '# %% [markdown]\n# Now check.\n\n# %%\nd2l',
     'not statement, hints, check'),
    ('exercise="price"', '', "exercises [], registered for the lesson ['pri"),
])
def test_each_rule_on_exercises_is_held(tmp_path, old, new, message):
    assert old in WITH_EXERCISE
    broken = exercise_breaks(tmp_path, WITH_EXERCISE.replace(old, new),
                             {'price': PRICE})
    assert any(message in text for text in broken), broken


SOLUTION = TOY[:TOY.index('# %% [m')] + '''# %% [markdown]
# # Solution

# %% exercise="price"
d2l.attempt('price', price=3)

# %% [markdown] tags=["expected"]
# ```output
# price: right
# ```
'''


def test_solutions_keep_rules_too(tmp_path):
    path = tmp_path / '01_toy_torch.py'
    assert mirror.solution_breaks(path, []) == []
    assert mirror.solution_breaks(path, ['price']) == [
        '01_toy_torch.py: no solution to price']
    path.write_text(SOLUTION)
    assert mirror.solution_breaks(path, ['price']) == []
    for text, ids, message in [
            (SOLUTION, ['price', 'cost'], 'expected one at each'),
            (SOLUTION.replace('exercise=', 'was='), ['price'], 'expected one'),
            (SOLUTION.replace('d2l.att', '#'), ['price'], 'expected one'),
            (SOLUTION.replace('```output', '```output smal'), ['price'],
             'unknown label'),
            (SOLUTION.replace('python3', 'mine'), ['price'], 'kernelspec')]:
        path.write_text(text)
        broken = mirror.solution_breaks(path, ids)
        assert any(message in why for why in broken), broken


# --- The names of the package ------------------------------------------------


def backend(name):
    return importlib.import_module(f'd2l_ext.{name}')


def public(owner):
    """{name: value} of the public names of a module or of our class."""
    if inspect.ismodule(owner):
        names = getattr(owner, '__all__', None) or vars(owner)
    else:  # a framework's own methods are none of ours
        names = {name for c in owner.__mro__
                 if c.__module__.startswith('d2l_ext') for name in vars(c)
                 if inspect.isroutine(getattr(c, name))
                 or inspect.isclass(getattr(c, name))}
    return {SAME_METHOD.get(name, name): getattr(owner, name)
            for name in names
            if (not name.startswith('_') or name in ('__init__', '__call__'))
            and not isinstance(getattr(owner, name), ModuleType)}


def arguments(value):
    return list(inspect.signature(value).parameters)


def is_ours(value):
    return getattr(value, '__module__', '').startswith('d2l_ext')


def signature_difference(name, torch, jax):
    ours, theirs = arguments(torch), arguments(jax)
    shared = [arg for arg in theirs if arg in ours or arg not in JAX_EXTRA]
    if ours != shared:
        yield name, f'torch ({", ".join(ours)}), jax ({", ".join(theirs)})'


def name_differences(torch, jax, prefix=''):
    """(name, what differs) of everything public below two owners."""
    left, right = public(torch), public(jax)
    for name in sorted(left.keys() | right.keys()):
        full = prefix + name
        if name not in left or name not in right:
            yield full, f'only in {"torch" if name in left else "jax"}'
            continue
        a, b = left[name], right[name]
        if a is b or not (is_ours(a) or is_ours(b)):
            continue
        if inspect.isclass(a) and inspect.isclass(b):
            yield from name_differences(a, b, f'{full}.')
        elif callable(a) and callable(b):
            yield from signature_difference(full, a, b)
        elif type(a) is not type(b):
            yield full, f'torch {type(a).__name__}, jax {type(b).__name__}'


def unexplained(differences):
    return [f'{name}: {what}' for name, what in differences
            if name not in DIFFERENCES]


def test_public_names_and_arguments_are_the_same():
    found = unexplained(name_differences(backend('torch'), backend('jax')))
    assert not found, '\n' + '\n'.join(found)


def module_names(name):
    return sorted(path.name for path in (ROOT / 'd2l_ext' / name).glob('*.py'))


def test_both_backends_have_the_same_files():
    assert module_names('torch') == module_names('jax')


def all_of(tree):
    """The names in a file's __all__."""
    for node in tree.body:
        if (isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == '__all__'):
            return ast.literal_eval(node.value)
    raise AssertionError('no __all__: what is public must be said')


def members(node):
    """A definition's name and, for a class, its public methods' names."""
    yield node.name
    for part in node.body if isinstance(node, ast.ClassDef) else ():
        name = getattr(part, 'name', '_')
        if not name.startswith('_') or name in ('__init__', '__call__'):
            yield f'{node.name}.{SAME_METHOD.get(name, name)}'


def definitions(path):
    """Public functions, classes and their methods, in order of the file."""
    tree = ast.parse(path.read_text())
    public_names = all_of(tree)
    return [name for node in tree.body
            if getattr(node, 'name', None) in public_names
            for name in members(node) if name not in DIFFERENCES]


@pytest.mark.parametrize('name', sorted(
    {*module_names('torch')} & {*module_names('jax')}
    - {'saved.py', '__init__.py'}))
def test_files_define_the_same_in_the_same_order(name):
    torch, jax = (definitions(ROOT / 'd2l_ext' / b / name)
                  for b in mirror.BACKENDS)
    diff = difflib.unified_diff(torch, jax, f'torch/{name}', f'jax/{name}',
                                lineterm='')
    assert torch == jax, '\n' + '\n'.join(diff)


def test_every_reasoned_difference_still_differs_and_has_a_reason():
    found = {name for name, _ in name_differences(backend('torch'),
                                                  backend('jax'))}
    assert set(DIFFERENCES) <= found
    assert all(DIFFERENCES.values())


def test_a_changed_argument_order_would_be_seen():
    class Torch:
        def forward(self, X, cache):
            """Both in one order."""

        def step(self, X, top_k):
            """Without a seed."""

    class Jax:
        def __call__(self, cache, X):
            """In the other order."""

        def step(self, X, seed, top_k):
            """The seed may be extra."""

        def reset(self):
            """Nowhere else."""

    for owner in (Torch, Jax):
        owner.__module__ = 'd2l_ext.toy'
        for value in vars(owner).values():
            if inspect.isfunction(value):
                value.__module__ = 'd2l_ext.toy'
    assert list(name_differences(Torch, Jax)) == [
        ('forward', 'torch (self, X, cache), jax (self, cache, X)'),
        ('reset', 'only in jax')]
