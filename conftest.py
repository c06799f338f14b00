"""`pytest --nbmake notebooks`: run the .py notebooks, hold their numbers.

The work is done in d2l_ext.notebooks. nbmake's classes used here are not a
documented interface, so environment.yml pins nbmake. d2l_ext.notebooks is
imported where it is used: it would slow the start of every other test run.
"""

import contextlib

import pytest
from nbmake.nb_result import NotebookError, NotebookResult
from nbmake.pytest_items import (
    NotebookFailedException,
    NotebookFile,
    NotebookItem,
)

PROPERTY = 'notebook result'  # how a result travels to the summary
REFUSED = 'wrong answers in all'
AHEAD = pytest.StashKey()     # {source: a future}: those that run two at once


class SourceItem(NotebookItem):
    def runtest(self):
        from d2l_ext import notebooks

        ahead = self.config.stash[AHEAD].pop(self.path, None)
        result = ahead.result() if ahead else notebooks.run(
            self.path, self.config.rootpath,
            self.config.option.nbmake_timeout)
        self.user_properties.append((PROPERTY, result.record()))
        if result.faults:
            text = '\n'.join(str(fault) for fault in result.faults)
            error = NotebookError(
                f'faults: {len(result.faults)}, first: '
                f'{result.faults[0].why}', text, result.faults[0].index)
            raise NotebookFailedException(NotebookResult(None, error))


class SourceFile(NotebookFile):
    def collect(self):
        name = str(self.path.relative_to(self.config.rootpath))
        yield SourceItem.from_parent(self, filename=name)


class NotATest(pytest.File):
    """A notebook named without --nbmake: pytest would import it."""

    def collect(self):
        raise self.CollectError('a notebook runs with pytest --nbmake, a '
                                'solution after its notebook')


class Nothing(pytest.File):
    def collect(self):
        return []


def pytest_collect_file(file_path, parent):
    config = parent.config
    if (config.option.nbmake and file_path.suffix == '.py'
            and file_path.parent == config.rootpath / 'notebooks'):
        return SourceFile.from_parent(parent, path=file_path)


def pytest_collection_modifyitems(session, config, items):
    """Those that may run beside others first, so that the rest is alone."""
    if config.option.nbmake:
        from d2l_ext import notebooks

        items.sort(key=lambda item: isinstance(item, SourceItem)
                   and notebooks.measures_time(item.path))


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session):
    config, chosen = session.config, []
    if config.option.nbmake and not config.option.collectonly:
        from d2l_ext import notebooks

        chosen = [item.path for item in session.items
                  if isinstance(item, SourceItem)
                  and not notebooks.measures_time(item.path)]
    with contextlib.ExitStack() as stack:
        config.stash[AHEAD] = stack.enter_context(notebooks.side_by_side(
            chosen, config.rootpath, config.option.nbmake_timeout)
        ) if chosen else {}
        return (yield)


def pytest_pycollect_makemodule(module_path, parent):
    folder = parent.config.rootpath / 'notebooks'
    if folder not in module_path.parents:
        return None
    kind = (Nothing if parent.config.option.nbmake
            and module_path.parent == folder else NotATest)
    return kind.from_parent(parent, path=module_path)


def properties(terminalreporter, wanted, outcome=None):
    """What tests left under a name, of all that ran or those that passed."""
    return [value for reports in terminalreporter.stats.values()
            for report in reports
            if getattr(report, 'when', None) == 'call'
            and outcome in (None, report.outcome)
            for name, value in report.user_properties if name == wanted]


def pytest_terminal_summary(terminalreporter, config):
    say_refused(terminalreporter, config.rootpath)
    if not config.option.nbmake:
        return
    from d2l_ext import notebooks

    results = [notebooks.from_record(value)
               for value in properties(terminalreporter, PROPERTY)]
    if results:
        terminalreporter.section('notebooks')
        for result in results:
            terminalreporter.line(result.line())
        terminalreporter.line(notebooks.summary(results, config.rootpath))


def say_refused(terminalreporter, root):
    """How many of the known wrong answers the tests saw refused."""
    tried = properties(terminalreporter, REFUSED)  # each test left their total
    if not tried:
        return
    refused = properties(terminalreporter, REFUSED, 'passed')
    terminalreporter.line(f'wrong answers refused: {len(refused)} of '
                          f'{len(tried)} tried, known: {tried[0]}')
    if len(refused) == tried[0]:
        from d2l_ext.exercises import tally

        tally.write(root, len(refused))
