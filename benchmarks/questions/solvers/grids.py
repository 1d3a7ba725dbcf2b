"""Solvers of tasks whose rule maps a row of colours to another. 0 is the ground."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.questions.solution import Solution, undecided, value

Row = list[int]
Rule = Callable[[Row], Row | None]
"""None where the rule says nothing about a row."""

Examples = Sequence[tuple[Row, Row]]
MOST_STEPS = 6


def arc_1d(question: str) -> Solution:
    """The output by all simple rules that fit the examples, if it is the same."""
    rows = [list(map(int, text.split())) for text in re.findall(r"(?:Input|Output):\s+([\d ]+)", question)]
    *shown, asked = rows
    examples = list(zip(shown[::2], shown[1::2], strict=True))
    found: dict[str, str] = {}
    for name, rule in _rules(examples):
        if all(_applied(rule, given) == result for given, result in examples):
            output = _applied(rule, asked)
            if output is not None:
                found.setdefault(" ".join(map(str, output)), name)
    if not found:
        return undecided("no simple rule found")
    if len(found) > 1:
        return undecided(f"{len(found)} rules fit: {', '.join(sorted(found.values()))}")
    return value(*found)


def _applied(rule: Rule, given: Row) -> Row | None:
    """The output, or None if the rule does not apply to the row, as with an empty row or an index beyond its end."""
    try:
        return rule(list(given))
    except (IndexError, ValueError):
        return None


def _rules(examples: Examples) -> Iterator[tuple[str, Rule]]:
    """Each rule, and each rule read from right to left."""
    flipped = [(given[::-1], result[::-1]) for given, result in examples]
    yield from _rules_from_the_left(examples)
    for name, rule in _rules_from_the_left(flipped):
        yield f"{name}, from the right", _mirrored(rule)


def _mirrored(rule: Rule) -> Rule:
    def from_the_right(row: Row) -> Row | None:
        output = rule(row[::-1])
        return None if output is None else output[::-1]

    return from_the_right


def _rules_from_the_left(examples: Examples) -> Iterator[tuple[str, Rule]]:
    colours = sorted({colour for _, result in examples for colour in result if colour})
    for steps in range(1, MOST_STEPS + 1):
        yield f"turn by {steps}", lambda row, n=steps: row[n:] + row[:n]
        yield f"the object moves by {steps}", lambda row, n=steps: row[n:] + [0] * n if not any(row[:n]) else None
    yield "the object moves by its length", _moved_by_own_length
    common = set.intersection(*(set(given) for given, _ in examples)) - {0}
    for colour in sorted(common):
        for steps in range(1, MOST_STEPS + 1):
            yield f"at most {steps} to the dot {colour}", lambda row, c=colour, n=steps: _moved_to_dot(row, c, n)
        yield f"the object moves to the dot {colour}", lambda row, c=colour: _moved_to_dot(row, c, len(row))
        yield f"the object grows to the dot {colour}", lambda row, c=colour: _grown_to_dot(row, c)
        yield f"the object is reversed about the dot {colour}", lambda row, c=colour: _reversed_about_dot(row, c)
        yield f"each dot spreads towards {colour} at the end", lambda row, c=colour: _spread_to_wall(row, c)
    yield "all fall", lambda row: _padded([colour for colour in row if colour], len(row))
    yield "all fall and are sorted", lambda row: _padded(sorted(filter(None, row)), len(row))
    yield "all fall and are sorted downwards", lambda row: _padded(sorted(filter(None, row))[::-1], len(row))
    yield "each falls a step", _fallen_a_step
    for colour in colours:
        yield f"count in {colour}", lambda row, c=colour: _padded([c] * sum(map(bool, row)), len(row))
        yield f"all become {colour}", lambda row, c=colour: [c if old else 0 for old in row]
        yield f"the longest block becomes {colour}", lambda row, c=colour: _longest_painted(row, c)
        yield f"the first half of each block becomes {colour}", lambda row, c=colour: _halves_painted(row, c)
        for length in range(1, 5):
            yield (
                f"{colour} beside blocks of {length}",
                lambda row, c=colour, n=length: _marked(row, c, n),
            )
    for first, last in itertools.permutations(colours, 2):
        yield f"{first} falls to one end, {last} to the other", lambda row, a=first, b=last: _parted(row, a, b)
    yield "between two equal dots is filled", _filled_between
    yield "only the ends of the object are left", _emptied
    yield "the object is reversed", lambda row: _reversed_object(row, _object(row))
    yield "objects take the colour of most of their cells", _without_noise_inside
    yield "dots beside the longest object are removed", _without_noise
    yield "the first object is copied to the dots", lambda row: _copied_to_dots(row, keeps_colour=False)
    yield "the first object is copied to the dots in their colour", lambda row: _copied_to_dots(row, keeps_colour=True)
    yield "blocks take the colours of a palette", _painted_from_palette
    yield "blocks in ascending order", lambda row: _sorted_blocks(row, is_by_length=True)
    yield "blocks with one cell between them", lambda row: _sorted_blocks(row, is_by_length=False)
    yield "blocks are painted by rank", lambda row: _painted_by_rank(row, _colours_by_rank(examples))
    yield "seeds repeat the block", _repeated_from_seeds
    yield "the seed fills up to the border", _filled_from_seed
    yield "each dot spreads to the dot before it", _spread_to_the_dot_before
    yield "the pattern goes on", _continued_pattern


# --- blocks: cells of one colour side by side; objects: cells of any colour side by side


@dataclass(frozen=True)
class Span:
    """Cells from `start` to before `end`."""

    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def _spans(row: Row, key: Callable[[int], int]) -> list[Span]:
    found = []
    start = 0
    for is_there, group in itertools.groupby(row, key):
        end = start + len(list(group))
        if is_there:
            found.append(Span(start, end))
        start = end
    return found


def _blocks(row: Row) -> list[Span]:
    return _spans(row, lambda colour: colour)


def _objects(row: Row) -> list[Span]:
    return _spans(row, lambda colour: int(colour != 0))


def _object(row: Row) -> Span:
    """The only object, from its first to its last cell."""
    places = [place for place, colour in enumerate(row) if colour]
    return Span(places[0], places[-1] + 1)


def _padded(cells: Row, size: int) -> Row:
    return [*cells, *[0] * (size - len(cells))]


# --- moves


def _fallen_a_step(row: Row) -> Row:
    output = list(row)
    for place in range(1, len(row)):
        if output[place] and not output[place - 1]:
            output[place - 1], output[place] = output[place], 0
    return output


def _block_and_dot(row: Row, dot_colour: int) -> tuple[Span, int] | None:
    """The row has a dot, which is a single cell of its colour, and a block of another colour."""
    blocks = _blocks(row)
    if len(blocks) != 2 or row.count(dot_colour) != 1:
        return None
    block = next(block for block in blocks if row[block.start] != dot_colour)
    return block, row.index(dot_colour)


def _moved_to_dot(row: Row, dot_colour: int, steps: int) -> Row | None:
    found = _block_and_dot(row, dot_colour)
    if found is None:
        return None
    block, dot = found
    by = -min(steps, block.start - dot - 1) if dot < block.start else min(steps, dot - block.end)
    output = [0] * len(row)
    output[dot] = row[dot]
    output[block.start + by : block.end + by] = row[block.start : block.end]
    return output


def _grown_to_dot(row: Row, dot_colour: int) -> Row | None:
    """The block covers the dot too."""
    found = _block_and_dot(row, dot_colour)
    if found is None:
        return None
    block, dot = found
    places = range(min(dot, block.start), max(dot + 1, block.end))
    return [row[block.start] if place in places else colour for place, colour in enumerate(row)]


def _moved_by_own_length(row: Row) -> Row | None:
    span = _object(row)
    if len(span) > span.start:
        return None
    return row[len(span) :] + [0] * len(span)


def _parted(row: Row, first: int, last: int) -> Row:
    numbers = Counter(row)
    between = len(row) - numbers[first] - numbers[last]
    return [first] * numbers[first] + [0] * between + [last] * numbers[last]


# --- objects


def _filled_between(row: Row) -> Row | None:
    span = _object(row)
    if row[span.start] != row[span.end - 1]:
        return None
    return row[: span.start] + [row[span.start]] * len(span) + row[span.end :]


def _emptied(row: Row) -> Row:
    span = _object(row)
    return [colour if place in (span.start, span.end - 1) else 0 for place, colour in enumerate(row)]


def _reversed_object(row: Row, span: Span) -> Row:
    return row[: span.start] + row[span.start : span.end][::-1] + row[span.end :]


def _reversed_about_dot(row: Row, dot_colour: int) -> Row | None:
    found = _block_and_dot(row, dot_colour)
    if found is None:
        return None
    block, dot = found
    output = [0] * len(row)
    output[dot] = row[dot]
    for place in range(block.start, block.end):
        target = 2 * dot - place
        if target < 0:
            return None
        output[target] = row[place]
    return output


def _without_noise_inside(row: Row) -> Row:
    output = list(row)
    for span in _objects(row):
        cells = row[span.start : span.end]
        most = Counter(cells).most_common(1)[0][0]
        output[span.start : span.end] = [most] * len(span)
    return output


def _without_noise(row: Row) -> Row:
    longest = max(_objects(row), key=len)
    return [colour if longest.start <= place < longest.end else 0 for place, colour in enumerate(row)]


def _copied_to_dots(row: Row, keeps_colour: bool) -> Row:
    first, *dots = _objects(row)
    half = len(first) // 2
    output = list(row)
    for dot in dots:
        colour = row[dot.start] if keeps_colour else row[first.start]
        output[dot.start - half : dot.start + half + 1] = [colour] * len(first)
    return output[: len(row)]


# --- blocks


def _painted(row: Row, blocks: Sequence[Span], colours: Sequence[int]) -> Row:
    output = list(row)
    for block, colour in zip(blocks, colours, strict=True):
        output[block.start : block.end] = [colour] * len(block)
    return output


def _longest_painted(row: Row, colour: int) -> Row:
    return _painted(row, [max(_objects(row), key=len)], [colour])


def _halves_painted(row: Row, colour: int) -> Row:
    halves = [Span(block.start, block.start + len(block) // 2) for block in _objects(row)]
    return _painted(row, halves, [colour] * len(halves))


def _marked(row: Row, colour: int, length: int) -> Row:
    output = list(row)
    for block in _objects(row):
        if len(block) == length:
            for place in (block.start - 1, block.end):
                if 0 <= place < len(row):
                    output[place] = colour
    return output


def _painted_from_palette(row: Row) -> Row | None:
    palette, *blocks = _objects(row)
    if len(palette) != len(blocks):
        return None
    return _painted(row, blocks, row[palette.start : palette.end])


def _sorted_blocks(row: Row, is_by_length: bool) -> Row:
    blocks = _objects(row)
    if is_by_length:
        blocks.sort(key=len)
    output: Row = []
    for block in blocks:
        output += [*row[block.start : block.end], 0]
    return _padded(output, len(row))[: len(row)]


def _ranks(row: Row) -> list[int]:
    """The place of the length of each block among the different lengths, longest first."""
    blocks = _objects(row)
    lengths = sorted({len(block) for block in blocks}, reverse=True)
    return [lengths.index(len(block)) for block in blocks]


def _colours_by_rank(examples: Examples) -> dict[int, int]:
    found = {}
    for given, result in examples:
        for block, rank in zip(_objects(given), _ranks(given), strict=True):
            found[rank] = result[block.start]
    return found


def _painted_by_rank(row: Row, colours: dict[int, int]) -> Row | None:
    ranks = _ranks(row)
    if not set(ranks) <= colours.keys():
        return None
    return _painted(row, _objects(row), [colours[rank] for rank in ranks])


# --- seeds and patterns


def _repeated_from_seeds(row: Row) -> Row | None:
    """A seed stands one cell away from the block, and repeats it in its own colour up to the border."""
    objects = _objects(row)
    block = max(objects, key=len)
    period = len(block) + 1
    output = list(row)
    for seed in objects:
        if seed == block:
            continue
        is_before = seed.end == block.start - 1
        if len(seed) != 1 or not (is_before or seed.start == block.end + 1):
            return None
        places = range(seed.start + 1) if is_before else range(seed.start, len(row))
        for place in places:
            if abs(place - seed.start) % period != len(block):
                output[place] = row[seed.start]
    return output


def _filled_from_seed(row: Row) -> Row | None:
    """A cell at one end of a block, of another colour, fills all cells up to the border."""
    blocks = _blocks(row)
    if len(blocks) != 2 or blocks[0].end != blocks[1].start:
        return None
    seed, block = sorted(blocks, key=len)
    if len(seed) != 1:
        return None
    places = range(seed.end) if seed.start < block.start else range(seed.start, len(row))
    return [row[seed.start] if place in places else colour for place, colour in enumerate(row)]


def _spread_to_wall(row: Row, wall: int) -> Row | None:
    if row[0] == wall:
        return _spread_to_the_dot_before(row)
    return _mirrored(_spread_to_the_dot_before)(row) if row[-1] == wall else None


def _spread_to_the_dot_before(row: Row) -> Row | None:
    if not row[0]:
        return None
    output = list(row)
    following = 0
    for place in range(len(row) - 1, 0, -1):
        following = row[place] or following
        output[place] = following
    return output


def _continued_pattern(row: Row) -> Row | None:
    """The object begins with a block of cells and a copy of this block."""
    length = _object(row).end // 2
    if not length or row[:length] != row[length : 2 * length]:
        return None
    return [row[place % length] for place in range(len(row))]
