"""Output blocks: what a notebook tells its reader to expect, held true.

Below a code cell that prints stands a markdown cell tagged `expected` with
one or more fences, optionally inside <details>:

    ```output small timemachine
    best validation loss 1.58±0.03, cache 12.0 KiB per token
    max |full - cached| = <1e-5, naive ~2450 ms/token
    ```

Text and plain numbers match exactly (a run of blanks counts as one, blank
lines do not count). Four slots give a number room: x±t, <x, >x, and ~x for
any finite number; ~… is any text, for what a trained model writes or what
nobody has measured. ~⋮ alone in a line is a line of any text or more, once in
a block. The words after `output` are labels of a run: the block holds for runs
that have them all. {profile}, {text} and {checkpoint} stand for the labels.
A figure prints `[figure]`. What a cell writes to stderr and a printed nan
are faults whatever the block says.
"""

import difflib
import re
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache

from .runs import LABELS

NUMBER = (r'[+-]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)'
          r'(?:[eE][+-]?\d+)?')
SLOT = re.compile(rf'(?P<op>[~<>])(?P<limit>{NUMBER})'
                  rf'|(?P<centre>{NUMBER})±(?P<tolerance>{NUMBER})'
                  r'|(?P<words>~…)')
LINES = '~⋮'
FIGURE = '[figure]'
PLAIN = re.compile(rf'(?<![\w.]){NUMBER}')  # not the 2 of gpt2
NAN = re.compile(r'(?<![a-z])nan(?![a-z])', re.IGNORECASE)
NO_NUMBER = re.compile(r'(?<![a-z])(nan|inf)(?![a-z])', re.IGNORECASE)
FENCE = re.compile(r' {0,3}(`{3,})([^`]*)$')


@dataclass
class Counts:
    """Numbers that were held, by how firmly."""

    exact: int = 0
    bounded: int = 0
    free: int = 0

    def __add__(self, other):
        return Counts(self.exact + other.exact, self.bounded + other.bounded,
                      self.free + other.free)

    def __str__(self):
        return (f'{self.exact} exact, {self.bounded} bounded, '
                f'{self.free} free (~)')


@dataclass
class Fault:
    """One thing that is not as written, and where to look."""

    heading: str
    index: int  # cell, counted from 0 over all cells
    why: str
    written: str = ''
    printed: str = ''
    detail: str = ''

    def __str__(self):
        where = self.heading or 'before the first heading'
        text = f'{where} (cell {self.index}): {self.why}'
        for name, lines in (('written', self.written),
                            ('printed', self.printed)):
            for line in lines.splitlines():
                text += f'\n    {name}: {line}'
        for line in self.detail.splitlines():
            text += f'\n    {line}'
        return text


@dataclass
class Report:
    faults: list = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)


@dataclass(frozen=True)
class Block:
    """The fence of one run: its labels and its lines."""

    labels: tuple
    lines: tuple
    closed: bool = True

    def __str__(self):
        return ' '.join(('output', *self.labels))


# --- Markdown: fences and headings --------------------------------------


def split_fences(text):
    """[(info or None, lines, closed)]: fences, and the prose around them."""
    parts, ticks = [(None, [], True)], ''
    for line in text.splitlines():
        mark = FENCE.match(line.rstrip())
        if not ticks and mark:
            ticks = mark[1]
            parts.append((mark[2].strip(), [], False))
        elif (ticks and mark and mark[1].startswith(ticks)
              and not mark[2].strip()):
            ticks = ''
            parts[-1] = (*parts[-1][:2], True)
            parts.append((None, [], True))
        else:
            parts[-1][1].append(line)
    return parts


def prose_lines(text):
    """The lines of a markdown text that stand in no fence."""
    return [line for info, lines, _ in split_fences(text) if info is None
            for line in lines]


def headings(text):
    """The heading lines of a markdown text, as they stand."""
    return [line for line in prose_lines(text)
            if re.match(r'#{1,6} ', line)]


def headings_above(cells):
    """For each cell the nearest heading above or in it, or ''."""
    nearest, found = '', []
    for cell in cells:
        if cell['cell_type'] == 'markdown':
            own = headings(cell['source'])
            nearest = own[-1].lstrip('#').strip() if own else nearest
        found.append(nearest)
    return found


def tags(cell):
    return cell['metadata'].get('tags', [])


def blocks_in(cell):
    """The output blocks of a markdown cell, in order."""
    if cell['cell_type'] != 'markdown':
        return []
    return [Block(tuple(info.split()[1:]), tuple(lines), closed)
            for info, lines, closed in split_fences(cell['source'])
            if info and info.split()[0] == 'output']


# --- Faults that need no run ---------------------------------------------


def exclude_each_other(labels):
    """Whether no run has all these labels: two values of one label."""
    return any(len(set(labels) & set(values)) > 1
               for _, values in LABELS.values())


def label_faults(blocks):
    """Why the labels of the blocks below one cell are not usable."""
    known = {value for _, values in LABELS.values() for value in values}
    for number, block in enumerate(blocks):
        for label in block.labels:
            if label not in known:
                yield (f'unknown label {label!r} in `{block}`, expected one '
                       f'of {", ".join(sorted(known))}')
        if exclude_each_other(block.labels):
            yield f'`{block}`: no run has all these labels'
        for other in blocks[:number]:
            if not exclude_each_other(block.labels + other.labels):
                yield (f'two output blocks hold for the same run: '
                       f'`{other}` and `{block}`')


def block_faults(cell, above):
    """Why the blocks of a markdown cell cannot be held to the cell above."""
    blocks = blocks_in(cell)
    if 'expected' not in tags(cell):
        if blocks:
            yield 'an output block in a cell not tagged `expected`'
        return
    if not blocks:
        yield 'a cell tagged `expected` without an output block'
    for info, _, _ in split_fences(cell['source']):
        if info is not None and info.split()[:1] != ['output']:
            yield f'a fence {info!r} in a cell tagged `expected`'
    if any(not block.closed for block in blocks):
        yield 'an output block that is not closed'
    if above is None or above['cell_type'] != 'code':
        yield 'an output block under no code cell'
    yield from label_faults(blocks)


def layout_faults(cells):
    """Blocks that are misplaced, mislabelled or ambiguous, before any run."""
    where = headings_above(cells)
    return [Fault(where[i], i, why)
            for i, cell in enumerate(cells) if cell['cell_type'] == 'markdown'
            for why in block_faults(cell, cells[i - 1] if i else None)]


# --- One line -------------------------------------------------------------


def one_blank(line):
    return ' '.join(line.split())


def decimal(text):
    return Decimal(text.replace(',', ''))


@dataclass(frozen=True)
class Slot:
    text: str
    op: str
    value: Decimal = Decimal(0)
    tolerance: Decimal = Decimal(0)

    def expression(self, number=NUMBER):
        """What may be printed in the slot, before its value is checked."""
        # printed columns are padded, so a blank may stand before a slot
        return '(.*\\S.*)' if self.op == '…' else rf' ?({number})'

    def holds(self, printed):
        if self.op == '…':
            return True
        x = decimal(printed)
        return x.is_finite() and {
            '~': True, '<': x < self.value, '>': x > self.value,
            '±': abs(x - self.value) <= self.tolerance}[self.op]


@lru_cache(maxsize=4096)
def pieces(line):
    """A written line as literal texts and the slots between them."""
    found, end = [], 0
    for m in SLOT.finditer(line):
        found.append(line[end:m.start()])
        if m['words']:
            found.append(Slot(m[0], '…'))
        elif m['op']:
            found.append(Slot(m[0], m['op'], decimal(m['limit'])))
        else:
            found.append(Slot(m[0], '±', decimal(m['centre']),
                              decimal(m['tolerance'])))
        end = m.end()
    return (*found, line[end:])


def with_plain_slots(parts):
    """The pieces again, with plain numbers as strings of their own."""
    for part in parts:
        if isinstance(part, Slot):
            yield part
            continue
        end = 0
        for m in PLAIN.finditer(part):
            yield part[end:m.start()]
            yield m
            end = m.end()
        yield part[end:]


@lru_cache(maxsize=4096)
def pattern(line, loose=False):
    """A regular expression for a written line, one group per slot.

    loose: plain numbers are groups too, to say which of them differs.
    """
    value = f'{NUMBER}|[+-]?inf' if loose else NUMBER
    parts = with_plain_slots(pieces(line)) if loose else pieces(line)
    return re.compile(''.join(
        re.escape(part) if isinstance(part, str)
        else part.expression(value) if isinstance(part, Slot)
        else f'({value})' for part in parts))


def why_differs(written, printed):
    """Name the numbers that differ, if it is only numbers."""
    match = pattern(written, loose=True).fullmatch(printed)
    if not match:
        return 'the text differs'
    wanted = [part for part in with_plain_slots(pieces(written))
              if not isinstance(part, str)]
    wrong = []
    for want, got in zip(wanted, match.groups(), strict=True):
        if isinstance(want, Slot):
            if not want.holds(got):
                wrong.append(f'{got} is not {want.text}')
        elif want[0] != got:
            wrong.append(f'{got} is not {want[0]}')
    return '; '.join(wrong) or 'the text differs'


def line_fault(written, printed):
    """Why a printed line is not the written one; None if it is."""
    written, printed = one_blank(written), one_blank(printed)
    if NAN.search(printed):
        return 'nan was printed'
    if printed == FIGURE != written:
        return 'a figure was printed'
    match = pattern(written).fullmatch(printed)
    slots = pieces(written)[1::2]
    if match and all(slot.holds(number) for slot, number
                     in zip(slots, match.groups(), strict=True)):
        return None
    return why_differs(written, printed)


def line_counts(written):
    """How firmly the numbers of a written line are held."""
    parts = pieces(one_blank(written))
    free = sum(slot.op in '~…' for slot in parts[1::2])
    return Counts(sum(len(PLAIN.findall(text)) for text in parts[::2]),
                  len(parts[1::2]) - free, free)


def masked(written):
    """A written line with each number, slot or plain, as #."""
    return PLAIN.sub('#', SLOT.sub('#', one_blank(written)))


# --- One cell -------------------------------------------------------------


def alike(written, printed):
    """Whether two lines were probably meant to be the same one."""
    a, b = (masked(NO_NUMBER.sub('0', line)) for line in (written, printed))
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio() > 0.6


def align(written, printed):
    """Pairs (written, printed), None for a line without a partner.

    The cheapest edit: a line that is missing costs 1, one that differs a
    little more, so one missing line leaves those after it in place.
    """
    cost = [[i + j for j in range(len(printed) + 1)]
            for i in range(len(written) + 1)]
    for i, want in enumerate(written):
        for j, got in enumerate(printed):
            step = (0 if line_fault(want, got) is None
                    else 1.5 if alike(want, got) else 3)
            cost[i + 1][j + 1] = min(cost[i][j] + step, cost[i][j + 1] + 1,
                                     cost[i + 1][j] + 1)
    pairs, i, j = [], len(written), len(printed)
    while i or j:
        if i and cost[i][j] == cost[i - 1][j] + 1:
            i -= 1
            pairs.append((written[i], None))
        elif j and cost[i][j] == cost[i][j - 1] + 1:
            j -= 1
            pairs.append((None, printed[j]))
        else:
            i, j = i - 1, j - 1
            pairs.append((written[i], printed[j]))
    return pairs[::-1]


def output_text(output):
    """What one output shows its reader, as text."""
    kind = output['output_type']
    if kind == 'stream':
        return output['text']
    if kind == 'error':
        return f'{output["ename"]}: {output["evalue"]}\n'
    if any(mime.startswith('image/') for mime in output['data']):
        return f'{FIGURE}\n'
    return output['data'].get('text/plain', '') + '\n'


def printed_lines(cell):
    """(lines, stderr lines) of an executed code cell, blank lines left out.

    Neighbouring pieces of a stream are joined: a kernel cuts them anywhere.
    """
    text, errors, last = '', '', None
    for output in cell['outputs']:
        kind = (output['output_type'], output.get('name'))
        if kind == ('stream', 'stderr'):
            errors += output_text(output)
            continue
        if kind != last and text and not text.endswith('\n'):
            text += '\n'
        text, last = text + output_text(output), kind
    return ([line for line in text.split('\n') if line.strip()],
            [line for line in errors.split('\n') if line.strip()])


def pair_fault(written, printed):
    if written is None:
        return ('nan was printed' if NAN.search(printed)
                else 'printed, but not written')
    if printed is None:
        return 'written, but not printed'
    return line_fault(written, printed)


def compare(written, printed):
    """(faults as (why, written, printed), counts) for the lines of a cell."""
    faults, counts = [], Counts()
    for want, got in align(stretched(written, printed), printed):
        why = pair_fault(want, got)
        if why:
            faults.append((why, want or '', got or ''))
        else:
            counts += line_counts(want)
    return faults, counts


def stretched(written, printed):
    """Lines of any text, in place of ~⋮, as many as were printed for it."""
    if LINES not in written:
        return written
    i, more = written.index(LINES), len(printed) - len(written)
    return [*written[:i], *['~…'] * max(1, 1 + more), *written[i + 1:]]


def block_lines(block, labels):
    """The lines of a block with the labels of the run filled in."""
    text = '\n'.join(block.lines)
    for name, value in zip(LABELS, labels, strict=True):
        text = text.replace('{' + name + '}', value)
    return [line for line in text.split('\n') if line.strip()]


def cell_faults(cell, blocks, labels):
    """(faults as (why, written, printed), counts) for one code cell."""
    if cell.get('execution_count') is None:
        return [('the cell did not run', '', '')], Counts()
    printed, errors = printed_lines(cell)
    now = [block for block in blocks if set(block.labels) <= set(labels)]
    if now:
        faults, counts = compare(block_lines(now[0], labels), printed)
    else:
        why = (f'no output block holds for this run ({", ".join(labels)})'
               if blocks else 'printed, but no output block stands below')
        faults = [(why, '', '\n'.join(printed))] if printed else []
        counts = Counts()
    if errors:
        faults.append(('written to stderr', '', '\n'.join(
            f'[stderr] {line}' for line in errors)))
    raised = any(o['output_type'] == 'error' for o in cell['outputs'])
    if raised != ('raises-exception' in tags(cell)):
        faults.append(('the cell raised' if raised else
                       'tagged `raises-exception`, but it did not', '', ''))
    return faults, counts


def check(cells, labels):
    """Hold what executed cells printed to their blocks.

    labels: those of the run, in the order of runs.LABELS.
    """
    report, where = Report(layout_faults(cells)), headings_above(cells)
    for i, cell in enumerate(cells):
        if cell['cell_type'] != 'code' or not cell['source'].strip():
            continue
        below = cells[i + 1:i + 2]
        blocks = [b for c in below if 'expected' in tags(c)
                  for b in blocks_in(c)]
        faults, counts = cell_faults(cell, blocks, labels)
        report.faults += [Fault(where[i], i, *fault) for fault in faults]
        report.counts += counts
    report.faults.sort(key=lambda fault: fault.index)
    return report
