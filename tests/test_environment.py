"""One list of versions: environment.yml, read by all the others."""

import os
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import distributions, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name as canonical
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = yaml.safe_load((ROOT / 'environment.yml').read_text())
PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
*CONDA, PIP = ENVIRONMENT['dependencies']
PINS = {Requirement(line).name: Requirement(line)
        for line in PIP['pip'] if line != '-e .'}


def make(*arguments, cwd=ROOT):
    environment = {k: v for k, v in os.environ.items()
                   if not k.startswith('MAKE')}
    return subprocess.run(['make', *arguments], cwd=cwd, text=True,
                          capture_output=True, env=environment)


def test_the_environment_is_a_python_pip_and_pins():
    """What conda and repo2docker need, and nothing they would not read."""
    assert set(ENVIRONMENT) == {'name', 'channels', 'dependencies'}
    assert CONDA[1:] == ['pip'] and re.fullmatch(r'python=3\.\d+', CONDA[0])
    assert PIP['pip'][-1] == '-e .'
    for pin in PINS.values():
        assert re.fullmatch('==[0-9.]+', str(pin.specifier)), pin


def test_each_pin_says_why_it_is_there():
    for line in (ROOT / 'environment.yml').read_text().splitlines():
        if '==' in line and not line.startswith('#'):
            assert re.search(r'==\S+ +# \w+', line), line


def test_the_makefile_reads_the_same_pins():
    """`make setup` would install just these, torch first and alone."""
    planned = make('-n', '-B', 'setup').stdout
    installs = re.findall(r'pip install (.*)', planned)
    assert installs[0].split() == ['--quiet', str(PINS['torch'])]
    assert installs[1].split() == ['--quiet', *map(str, PINS.values()),
                                   '-e', '.']


def test_the_reader_chooses_cpu_or_cuda():
    """TORCH_INDEX applies to torch alone, JAX_CUDA asks for jax's extra."""
    planned = make('-n', '-B', 'setup', 'TORCH_INDEX=file:///wheels',
                   'JAX_CUDA=13').stdout
    installs = re.findall(r'pip install (.*)', planned)
    assert installs[0].split()[1:3] == ['--index-url', 'file:///wheels']
    assert 'file:///wheels' not in ' '.join(installs[1:])
    assert installs[2] == f"--quiet 'jax[cuda13]{PINS['jax'].specifier}'"


def test_bounds_in_pyproject_hold_for_the_pins():
    """Every package that pyproject names is pinned, within its bounds."""
    lines = PROJECT['dependencies'] + [
        line for extra in PROJECT['optional-dependencies'].values()
        for line in extra]
    named = {Requirement(line).name: Requirement(line) for line in lines}
    assert named.keys() == PINS.keys()
    for name, requirement in named.items():
        pin = str(PINS[name].specifier).removeprefix('==')
        assert pin in requirement.specifier, f'{requirement}, pinned {pin}'


def test_python_versions_agree():
    """pyproject, environment.yml, the Makefile, README and ruff."""
    allowed = SpecifierSet(PROJECT['requires-python'])
    fits = [f'3.{minor}' for minor in range(8, 20) if f'3.{minor}' in allowed]
    assert CONDA[0].removeprefix('python=') in fits
    low, high = fits[0], fits[-1]
    assert f'Python {low} to {high}' in (ROOT / 'README.md').read_text()
    makefile = (ROOT / 'Makefile').read_text()
    assert f'Python {low} to {high}' in makefile
    assert '({}) <= v <= ({})'.format(*(v.replace('.', ', ')
                                        for v in (low, high))) in makefile


@pytest.mark.parametrize('name', PINS)
def test_what_runs_here_is_what_is_pinned(name):
    """A number that moved must not be laid to a version that is not ours."""
    pinned = Version(str(PINS[name].specifier).removeprefix('=='))
    assert Version(Version(version(name)).public) == pinned


@pytest.mark.skipif(not os.environ.get('CI'), reason='a reader may install '
                    'what he likes; the gate runs on what is listed')
def test_nothing_is_installed_that_is_not_listed():
    """A package that lies here by chance would hide a missing pin."""
    installed = {canonical(d.name): d for d in distributions()}
    listed, queue = set(), [canonical(name) for name in PINS]
    queue += ['d2l-ext', 'pip', 'setuptools', 'wheel']
    while queue:
        name = queue.pop()
        if name in listed or name not in installed:
            continue
        listed.add(name)
        queue += [canonical(Requirement(line).name)
                  for line in installed[name].requires or []]
    assert not installed.keys() - listed


def test_an_unfit_python_is_named(tmp_path):
    """The set-up stops at once, with what to do."""
    old = tmp_path / 'python3.9'
    old.write_text('#!/bin/sh\nexec ' + shutil.which('python3') + ' - "$2" '
                   '<<END\nimport sys\nsys.version_info = (3, 9, 0)\n'
                   'exec(sys.argv[1])\nEND\n')
    old.chmod(0o755)
    done = make('setup', f'PYTHON={old}', f'VENV={tmp_path}/venv')
    assert done.returncode and 'found 3.9: make PYTHON=' in done.stderr
    assert not (tmp_path / 'venv').exists()


def test_help_is_the_default_and_lists_every_goal():
    listed = re.findall(r'^make ([a-z-]+)', make().stdout, re.M)
    phony = re.search(r'\.PHONY: (.*)', (ROOT / 'Makefile').read_text())[1]
    assert sorted(listed) == sorted(phony.split())


def test_a_set_up_that_is_there_is_not_made_again(tmp_path):
    """With the stamp newer than the lists, make has nothing to do."""
    venv = tmp_path / 'venv'
    venv.mkdir()
    (venv / 'ready').touch()
    assert 'pip install' not in make('-n', 'setup', f'VENV={venv}').stdout


def test_the_gate_is_the_readmes_test_command():
    run = (ROOT / '.ci' / 'run').read_text()
    assert run.rstrip().endswith('exec make test')
    assert 'make test' in (ROOT / 'README.md').read_text()


def test_the_readme_is_short():
    assert len((ROOT / 'README.md').read_text().splitlines()) < 120
