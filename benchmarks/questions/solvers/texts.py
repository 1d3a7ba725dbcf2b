"""Tasks of texts: words, lists, matrices, grids and small rule systems."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import chain, combinations, pairwise
from typing import TypeAlias

from ..common import NEIGHBOURS, Cell, as_text, distances
from ..solution import Solution, undecided, value

Matrix: TypeAlias = list[list[int]]
LETTER_FREQUENCIES = dict(
    zip(
        "ETAOINSHRDLCUMWFGYPBVKJXQZ",
        [127, 91, 82, 75, 70, 67, 63, 61, 60, 43, 40, 28, 28, 24, 24, 22, 20, 20, 19, 15, 10, 8, 2, 2, 1, 1],
        strict=True,
    )
)


def read_matrix(text: str) -> Matrix:
    """The lines of the text that hold nothing but integers."""
    lines = [line.strip() for line in text.splitlines()]
    return [[int(number) for number in line.split()] for line in lines if re.fullmatch(r"-?\d+(\s+-?\d+)*", line)]


def rotate_clockwise(matrix: Matrix) -> Matrix:
    """A quarter turn."""
    return [list(column) for column in zip(*reversed(matrix), strict=True)]


def transpose(matrix: Matrix) -> Matrix:
    """Mirror along the main diagonal."""
    return [list(column) for column in zip(*matrix, strict=True)]


def after(question: str, mark: str) -> str:
    """The part of the question behind the last occurrence of the mark."""
    return question.rpartition(mark)[2].strip()


def cells_of(matrix: Sequence[Sequence[object]], wanted: object) -> set[Cell]:
    """The cells that hold this value."""
    cells = ((row, column) for row in range(len(matrix)) for column in range(len(matrix[row])))
    return {(row, column) for row, column in cells if matrix[row][column] == wanted}


def ab(question: str) -> Solution:
    """Rewrite neighbor tokens of an A::B program until no rule applies."""
    program = question.partition("following program:")[2].partition("Return")[0]
    tokens = program.split()
    position = 0
    while position + 1 < len(tokens):
        first, second = tokens[position], tokens[position + 1]
        if not (first.endswith("#") and second.startswith("#")):
            position += 1
            continue
        is_same_letter = first[0] == second[1]
        tokens[position : position + 2] = [] if is_same_letter else [second, first]
        position = max(position - 1, 0)
    return value(" ".join(tokens))


def binary_alternation(question: str) -> Solution:
    """The minimum number of swaps of two characters that makes a binary string alternating, or -1."""
    bits = after(question, ":")
    swaps = []
    for start in "01":
        other = "1" if start == "0" else "0"
        wanted = (start + other) * len(bits)
        wanted = wanted[: len(bits)]
        if Counter(wanted) == Counter(bits):
            wrong = sum(bit != target for bit, target in zip(bits, wanted, strict=True))
            swaps.append(wrong // 2)
    return value(min(swaps, default=-1))


def binary_matrix(question: str) -> Solution:
    """The taxicab distance from each cell to the nearest 0."""
    matrix = read_matrix(question)
    zeros = cells_of(matrix, 0)
    if not zeros:
        return undecided("no cell is 0")
    inside = zeros | cells_of(matrix, 1)
    steps = distances(zeros, inside.__contains__)
    result = [[steps[row, column] for column in range(len(matrix[row]))] for row in range(len(matrix))]
    return value(as_text(result))


def caesar_cipher(question: str) -> Solution:
    """The shift whose letters are most like English."""
    cipher = question.partition("text:")[2].rpartition(". Provide only")[0].strip()
    scored = []
    for shift in range(26):
        shifted = {chr(65 + number): chr(65 + (number + shift) % 26) for number in range(26)}
        text = "".join(shifted.get(letter, letter) for letter in cipher)
        letters = [letter for letter in text if letter.isupper()]
        # The product of the frequencies, as an exact integer.
        score = 1
        for letter in letters:
            score *= LETTER_FREQUENCIES[letter]
        scored.append((score, text))
    scored.sort(reverse=True)
    if scored[0][0] < 20 * scored[1][0]:
        return undecided(f"two shifts look alike: {scored[0][1]}, {scored[1][1]}")
    return value(scored[0][1])


def group_anagrams(question: str) -> Solution:
    """Group words of the same letters."""
    words = json.loads(after(question, "anagrams:"))
    groups: dict[str, list[str]] = {}
    for word in words:
        groups.setdefault("".join(sorted(word)), []).append(word)

    def normal(grouping: Iterable[Iterable[str]]) -> list[list[str]]:
        return sorted(sorted(group) for group in grouping)

    def judge(answer: str) -> bool:
        return normal(json.loads(answer)) == normal(groups.values())

    in_order = list(groups.values())
    backward = [group[::-1] for group in reversed(in_order)]
    if any(len(group) == 1 for group in in_order):
        return undecided("a word has no anagram in the list: it may be missing in the answer, or form a group alone")
    return Solution([json.dumps(in_order), str(in_order), json.dumps(backward)], judge=judge)


def isomorphic_strings(question: str) -> Solution:
    """Whether a one-to-one replacement of characters makes one string the other."""
    first, second = question.strip().splitlines()[-1].split()
    pairs = set(zip(first, second, strict=True))
    return value(len(pairs) == len(set(first)) == len(set(second)))


def letter_counting(question: str) -> Solution:
    """How often a letter appears in a text. Undecided if it also appears as a capital letter."""
    letter, text = re.search(r'letter "(.)" appear in the text: "(.*)"\?', question, re.DOTALL).groups()
    exact = text.count(letter)
    either_case = text.lower().count(letter.lower())
    if question.endswith("Capital letters count too."):
        return value(either_case)
    if exact != either_case:
        return undecided(f"{exact} if a capital letter is another letter, {either_case} if it is the same")
    return value(exact)


def letter_jumble(question: str) -> Solution:
    """Each word of an answer has the letters of the jumbled word. Whether they are English words is not checked."""
    jumbled = after(question, "unscramble these words:").split()

    def judge(answer: str) -> bool:
        words = answer.split()
        return [sorted(word) for word in words] == [sorted(word) for word in jumbled]

    return Solution(judge=judge, why="any word of the same letters is accepted")


def transform_matrix(matrix: Matrix, operation: str) -> Matrix:
    """One operation of manipulate_matrix. Mirroring and turning are as the question explains them."""
    numbers = [int(number) for number in re.findall(r"\d+", operation)]
    if operation.startswith("Identity"):
        return matrix
    if operation.startswith("Mirror the matrix along the diagonal"):
        return transpose(matrix)
    if operation.startswith("Mirror the matrix along the counterdiagonal"):
        turned_upside_down = [row[::-1] for row in matrix[::-1]]
        return transpose(turned_upside_down)
    if operation.startswith("Horizontally mirror"):
        return matrix[::-1]
    if operation.startswith("Vertically mirror"):
        return [row[::-1] for row in matrix]
    if operation.startswith("Rotate"):
        for _ in range(numbers[0] // 90):
            matrix = rotate_clockwise(matrix)
        return matrix
    if operation.startswith("Map each"):
        old, new = numbers
        return [[new if number == old else number for number in row] for row in matrix]
    if operation.startswith("Set all elements divisible"):
        return [[0 if number % numbers[0] == 0 else number for number in row] for row in matrix]
    if operation.startswith("Crop"):
        first_row, last_row, first_column, last_column = numbers[:4]
        return [row[first_column - 1 : last_column] for row in matrix[first_row - 1 : last_row]]
    if re.match(r"Remove every \d+-\w+ row", operation):
        return [row for place, row in enumerate(matrix, 1) if place % numbers[0]]
    if re.match(r"Remove every \d+-\w+ column", operation):
        return [[number for place, number in enumerate(row, 1) if place % numbers[0]] for row in matrix]
    raise ValueError(f"unknown operation: {operation}")


def manipulate_matrix(question: str) -> Solution:
    """Apply a list of operations to a matrix."""
    matrix = read_matrix(question)
    for operation in re.findall(r"^- (.*)$", question, re.MULTILINE):
        matrix = transform_matrix(matrix, operation)
    return value(as_text(matrix))


def palindrome_generation(question: str) -> Solution:
    """A palindrome of all the letters."""
    letters = [letter.strip() for letter in after(question, "letters:").split(",")]
    counts = Counter(letters)

    def judge(answer: str) -> bool:
        return Counter(answer) == counts and answer == answer[::-1]

    odd = "".join(letter for letter in counts if counts[letter] % 2)
    half = "".join(letter * (counts[letter] // 2) for letter in sorted(counts))
    if len(odd) > 1:
        return undecided("the letters form no palindrome")
    return Solution([half + odd + half[::-1], half[::-1] + odd + half], judge=judge)


def palindrome_partitions(text: str) -> list[list[str]]:
    """All ways to cut the text into palindromes."""
    if not text:
        return [[]]
    found = []
    for end in range(1, len(text) + 1):
        head = text[:end]
        if head == head[::-1]:
            found += [[head, *rest] for rest in palindrome_partitions(text[end:])]
    return found


def palindrome_partitioning(question: str) -> Solution:
    """All ways to cut a string into palindromes."""
    partitions = palindrome_partitions(after(question, "palindromes:"))

    def judge(answer: str) -> bool:
        return sorted(json.loads(answer)) == sorted(partitions)

    return Solution([json.dumps(partitions), str(partitions), json.dumps(partitions[::-1])], judge=judge)


def pool_matrix(question: str) -> Solution:
    """The largest element, or the mean, of each window. The windows do not overlap."""
    matrix = read_matrix(question)
    is_maximum = "Perform max pooling" in question
    size = int(re.search(r"kernel size of (\d+)", question).group(1))
    pooled = []
    for top in range(0, len(matrix), size):
        pooled.append([])
        for left in range(0, len(matrix[0]), size):
            window = [row[left : left + size] for row in matrix[top : top + size]]
            elements = list(chain.from_iterable(window))
            mean = Fraction(sum(elements), len(elements))
            pooled[-1].append(Fraction(max(elements)) if is_maximum else mean)

    def judge(answer: str) -> bool:
        rows = [[Fraction(number) for number in line.split()] for line in answer.strip().splitlines()]
        if [len(row) for row in rows] != [len(row) for row in pooled]:
            return False
        differences = (abs(a - b) for a, b in zip(chain(*rows), chain(*pooled), strict=True))
        return all(difference <= Fraction(1, 200) for difference in differences)

    with_two_places = [[f"{float(number):.2f}" for number in row] for row in pooled]
    # Halves of the last place are rounded up here, and to the even digit above.
    half_up = [[str(float(Fraction(int(number * 100 + Fraction(1, 2)), 100))) for number in row] for row in pooled]
    return Solution([as_text(with_two_places), as_text(half_up)], judge=judge)


def ransom_note(question: str) -> Solution:
    """Whether the magazine has the letters of the note."""
    note = re.search(r"Ransom note: (\w*)", question).group(1)
    magazine = re.search(r"Magazine: (\w*)", question).group(1)
    return value(not Counter(note) - Counter(magazine))


def rotate_matrix(question: str) -> Solution:
    """Turn a matrix clockwise by a multiple of 90 degrees."""
    matrix = read_matrix(question)
    degrees = int(re.search(r"by (\d+) degrees", question).group(1))
    if degrees % 90:
        return undecided("not a multiple of 90 degrees")
    for _ in range(degrees // 90 % 4):
        matrix = rotate_clockwise(matrix)
    return value(as_text(matrix))


def rotten_oranges(question: str) -> Solution:
    """Minutes until the rot has spread to all oranges, or -1."""
    grid = read_matrix(question)
    fresh = cells_of(grid, 1)
    steps = distances(cells_of(grid, 2), fresh.__contains__)
    if not fresh <= steps.keys():
        return value(-1)
    return value(max((steps[cell] for cell in fresh), default=0))


def sentence_reordering(question: str) -> Solution:
    """An answer has the words of the question. Their order is not checked."""
    words = question.partition("sentence:")[2].partition("\n")[0].split()

    def judge(answer: str) -> bool:
        return Counter(answer.split()) == Counter(words)

    return Solution(judge=judge, why="any order of the words is accepted")


def spell_backward(question: str) -> Solution:
    """The word from its last letter to its first."""
    return value(after(question, ":")[::-1])


def spiral_matrix(question: str) -> Solution:
    """The elements in clockwise spiral order, from the top left corner."""
    matrix = read_matrix(after(question, "spiral order?"))
    elements = []
    while matrix:
        elements += matrix[0]
        rest = matrix[1:]
        turned_left = [list(column) for column in zip(*rest, strict=True)][::-1]
        matrix = turned_left
    return value(" ".join(map(str, elements)))


def string_insertion(question: str) -> Solution:
    """Insert a letter behind each of five substrings, from left to right."""
    text = after(question, "pattern:")
    inserted = {"ABCD": "A", "BCDE": "B", "CDEA": "C", "DEAB": "D", "EABC": "E"}
    result = ""
    position = 0
    while position < len(text):
        window = text[position : position + 4]
        result += window + inserted[window] if window in inserted else text[position]
        position += 4 if window in inserted else 1
    return value(result)


def quoted(rule: str) -> list[str]:
    """The texts of a rule in single quotes."""
    return re.findall(r"'([abcz]+)'", rule)


def apply_rule(rule: str, text: str) -> str | None:
    """The text after a rule of string_manipulation. None if the rule does not apply."""
    strings = quoted(rule)
    if rule.startswith("If the string length is greater than"):
        limit = int(re.search(r"\d+", rule).group())
        middle = len(text) // 2
        return text[:middle] + text[middle + 1 :] if len(text) > limit else None
    if rule.startswith("If the string contains an even number of"):
        count = text.count(strings[0])
        return text + strings[-1] if count > 0 and count % 2 == 0 else None
    pattern = strings[0]
    if "(not at the start), remove the first occurrence found after the first character" in rule:
        place = text.find(pattern, 1)
        return text[:place] + text[place + len(pattern) :] if place > 0 else None
    if rule.startswith("If the string contains"):
        new = "" if "delete the first occurrence" in rule else strings[1]
        return text.replace(pattern, new, 1) if pattern in text else None
    if re.match(r"If the string (prefix is|starts with)", rule):
        return apply_prefix_rule(rule, text) if text.startswith(pattern) else None
    if re.match(r"If the string (suffix is|ends with)", rule):
        return apply_suffix_rule(rule, text) if text.endswith(pattern) else None
    raise ValueError(f"unknown rule: {rule}")


def apply_prefix_rule(rule: str, text: str) -> str:
    """The text after a rule about its beginning, which applies."""
    strings = quoted(rule)
    if "remove the second character" in rule:
        return text[0] + text[2:]
    if "remove the first character" in rule:
        return text[1:]
    if re.search(r"(remove|delete) the first two characters", rule):
        suffix = strings[1] if "append" in rule else ""
        return text[2:] + suffix
    text = strings[1] + text[len(strings[0]) :]
    if "delete the last character" in rule:
        text = text[:-1]
    if "append" in rule:
        text += strings[2]
    return text


def apply_suffix_rule(rule: str, text: str) -> str:
    """The text after a rule about its end, which applies."""
    strings = quoted(rule)
    if "delete the last two characters" in rule:
        return text[:-2]
    if "remove the last character" in rule:
        return text[:-1]
    text = text[: -len(strings[0])] + strings[1]
    if "prepend" in rule:
        text = strings[2] + text
    return text


def string_manipulation(question: str) -> Solution:
    """Apply the first rule that applies, until no rule applies or a text repeats."""
    rules = re.findall(r"^\d+\. (.*)$", question, re.MULTILINE)
    text = question.partition("list of rules:")[2].split()[0]
    seen = {text}
    while True:
        results = (apply_rule(rule, text) for rule in rules)
        following = next((result for result in results if result is not None), None)
        if following is None or following in seen:
            return value(text)
        seen.add(following)
        text = following


Counts: TypeAlias = tuple[int, ...]


def react(counts: list[int], rules: Sequence[Counts], times: int) -> list[int]:
    """Apply up to so many times the first of the rules that can be applied. A rule lists what it adds to each count."""
    for _ in range(times):
        results = ([count + change for count, change in zip(counts, rule, strict=True)] for rule in rules)
        following = next((result for result in results if min(result) >= 0), None)
        if following is None:
            break
        counts = following
    return counts


def string_splitting(question: str) -> Solution:
    """Dismantle machines A, B, C into parts X, Y, Z. No state is repeated."""
    rules = [
        (-1, 0, 0, 2, 1, 0),
        (0, -2, 0, 1, 0, 0),
        (0, 0, -2, 0, 1, 0),
        (1, -1, -1, 0, 0, 0),
        (0, 0, 0, -1, -1, 1),
    ]
    machines = re.search(r"you have (\d+) machine A, (\d+) machine B, and (\d+) machine C\. Provide", question).groups()
    counts = react([*map(int, machines), 0, 0, 0], rules, 1000)
    return value(" ".join(map(str, counts)))


def string_synthesis(question: str) -> Solution:
    """Combine blocks into other blocks. No state is repeated."""
    rules = [
        (-1, -1, -1, 1, 0, 0, 0, 0, 0),
        (-1, -1, 0, 0, 0, 1, 0, 0, 0),
        (0, -1, -1, 0, 1, 0, 0, 0, 0),
        (0, 0, -2, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, -1, 0, -1, 1, 1, 0),
        (0, 0, 0, 0, -2, 0, 0, 0, 1),
    ]
    blocks = re.search(r"Now, you have (\d+) \[A\], (\d+) \[B\], and (\d+) \[C\]", question).groups()
    counts = react([*map(int, blocks), *[0] * 6], rules, 1000)
    return value(" ".join(map(str, counts)))


def word_ladder(question: str) -> Solution:
    """The steps of an answer change one letter. Whether they are English words is not checked."""
    start, end = re.search(r"'(\w+)' to '(\w+)'", question).groups()

    def differs_by_one(first: str, second: str) -> bool:
        return len(first) == len(second) and sum(a != b for a, b in zip(first, second, strict=True)) == 1

    def judge(answer: str) -> bool:
        words = answer.strip().split(",")
        if not (words[0] == start and words[-1] == end and answer.isupper()):
            return False
        return all(differs_by_one(*pair) for pair in pairwise(words))

    return Solution(judge=judge, why="any words are accepted")


def word_sequence_reversal(question: str) -> Solution:
    """The words from the last to the first."""
    words = after(question, "list of words:").split(", ")
    return value(", ".join(reversed(words)))


def word_sorting(question: str) -> Solution:
    """The words in the order of their code points."""
    words = after(question, "comma-separated list:").split(", ")
    in_order = sorted(words, reverse="in descending order" in question)
    return Solution([", ".join(in_order)])


def emoji_mystery(question: str) -> Solution:
    """A sentence in the variation selectors of an emoji."""
    encoded = question.partition("from the emoji:")[2].partition("\n")[0].strip()
    points = [ord(character) for character in encoded[1:]]
    low = [point - 0xFE00 if point <= 0xFE0F else point - 0xE0100 + 16 for point in points if point >= 0xFE00]
    sentence = bytes(low).decode()
    # Some emojis already end with a variation selector, which decodes to a control character.
    return value(sentence.removeprefix("\x0f"))


def needle_haystack(question: str) -> Solution:
    """Who has this attitude to this thing?"""
    wanted = re.search(r"^Who (.*)\? Reply only", question, re.MULTILINE).group(1)
    stories = question.rpartition("\nWho ")[0].split(". ")
    names = {
        story[: -len(wanted)].strip()
        for story in (line.rstrip(". \n") for line in stories)
        if story.endswith(" " + wanted)
    }
    if len(names) != 1:
        return undecided(f"{len(names)} names fit: {sorted(names)}")
    return value(names.pop())


def border(top: int, left: int, bottom: int, right: int) -> set[Cell]:
    """The cells of the outline of a rectangle."""
    rows = {(row, column) for row in (top, bottom) for column in range(left, right + 1)}
    columns = {(row, column) for row in range(top, bottom + 1) for column in (left, right)}
    return rows | columns


def rectangle_sets(needed: dict[Cell, int], shortest_side: int, most_steps: int) -> tuple[set[int], bool]:
    """The sizes of the sets of outlines that cover each cell as often as needed, and whether all sets were tried."""
    sizes: set[int] = set()
    steps = 0

    def extent(corner: Cell, down: int, right: int) -> int:
        length = 0
        while needed.get((corner[0] + down * (length + 1), corner[1] + right * (length + 1)), 0) > 0:
            length += 1
        return length

    def search(found: int) -> None:
        nonlocal steps
        steps += 1
        open_cells = [cell for cell, count in needed.items() if count]
        if not open_cells:
            sizes.add(found)
        if steps > most_steps or not open_cells:
            return
        # The first cell in reading order is the top left corner of a rectangle.
        corner = min(open_cells)
        widest = extent(corner, 0, 1)
        for height in range(shortest_side - 1, extent(corner, 1, 0) + 1):
            for width in range(shortest_side - 1, widest + 1):
                outline = border(*corner, corner[0] + height, corner[1] + width)
                if any(needed.get(cell, 0) == 0 for cell in outline):
                    continue
                for cell in outline:
                    needed[cell] -= 1
                search(found + 1)
                for cell in outline:
                    needed[cell] += 1

    search(0)
    return sizes, steps <= most_steps


def rectangle_count(question: str) -> Solution:
    """Cover each # once and each █ twice with outlines. Use outlines without an inside only if needed."""
    grid = question.partition("in the grid below?\n")[2].partition("\n\nIf the picture")[0].splitlines()
    needed = dict.fromkeys(cells_of(grid, "#"), 1) | dict.fromkeys(cells_of(grid, "█"), 2)
    for shortest_side in (3, 2):
        sizes, is_complete = rectangle_sets(needed, shortest_side, most_steps=3_000)
        if not is_complete:
            return undecided(f"the search took too long, and found {sizes}")
        if sizes:
            return value(min(sizes))
    return undecided("no set of rectangles makes the picture")


def largest_island(question: str) -> Solution:
    """The size of the largest group of ones."""
    grid = read_matrix(question)
    left = cells_of(grid, 1)
    largest = 0
    while left:
        island = distances([next(iter(left))], left.__contains__).keys()
        largest = max(largest, len(island))
        left -= set(island)
    return value(largest)


def course_schedule(question: str) -> Solution:
    """Whether the prerequisites have no cycle."""
    pairs = re.findall(r"\((\d+), (\d+)\)", question)
    prerequisites: dict[str, set[str]] = {}
    for course, prerequisite in pairs:
        prerequisites.setdefault(course, set()).add(prerequisite)
        prerequisites.setdefault(prerequisite, set())
    finished: set[str] = set()
    while True:
        possible = {course for course, needs in prerequisites.items() if needs <= finished}
        if possible <= finished:
            return value(len(finished) == len(prerequisites))
        finished |= possible


def shortest_path(question: str) -> Solution:
    """The shortest paths from * to #. Several, if there are several."""
    lines = [line.split() for line in question.splitlines()]
    grid = [line for line in lines if line and set(line) <= set("*#OX")]
    start = cells_of(grid, "*").pop()
    goal = cells_of(grid, "#").pop()
    passable = cells_of(grid, "O") | {start, goal}
    steps = distances([goal], passable.__contains__)
    if start not in steps:
        return value("infeasible")

    def walk(preference: Sequence[str]) -> str:
        path = []
        cell = start
        while cell != goal:
            for direction in preference:
                down, right = NEIGHBOURS[direction]
                neighbour = (cell[0] + down, cell[1] + right)
                if steps.get(neighbour) == steps[cell] - 1:
                    path.append(direction)
                    cell = neighbour
                    break
        return " ".join(path)

    def judge(answer: str) -> bool:
        cell = start
        directions = answer.split()
        for direction in directions:
            down, right = NEIGHBOURS[direction]
            cell = (cell[0] + down, cell[1] + right)
            if cell not in passable:
                return False
        return cell == goal and len(directions) == steps[start]

    paths = {walk(list(NEIGHBOURS)), walk(list(NEIGHBOURS)[::-1])}
    return Solution(sorted(paths), judge=judge)


def path_star(question: str) -> Solution:
    """The path from the start to the goal, along the edges in their direction."""
    task = after(question, "task:")
    edges = re.findall(r"\|(\S+) ([^|/\s]+)", task)
    start, goal = re.search(r"/(\S+) (\S+)", task).groups()
    previous: dict[str, set[str]] = {}
    for first, second in edges:
        previous.setdefault(second, set()).add(first)
    path = [goal]
    while path[0] != start:
        before = previous.get(path[0], set())
        if len(before) != 1 or len(path) > len(edges):
            return undecided("not one path")
        path.insert(0, *before)
    return value(" ".join(path))


def acre(question: str) -> Solution:
    """Whether all sets of blickets that fit the experiments agree about a test."""
    results = re.findall(r"^(.*) → (on|off)$", question, re.MULTILINE)
    test = question.partition("New test case:\n")[2].splitlines()[0].split(", ")
    objects = sorted({thing for line, _ in results for thing in line.split(", ")} | set(test))
    outcomes = set()
    for size in range(len(objects) + 1):
        for chosen in combinations(objects, size):
            blickets = set(chosen)
            lights = ("off" if blickets.isdisjoint(line.split(", ")) else "on" for line, _ in results)
            if all(light == result for light, (_, result) in zip(lights, results, strict=True)):
                outcomes.add("off" if blickets.isdisjoint(test) else "on")
    if not outcomes:
        return undecided("no set of blickets fits the experiments")
    return value(outcomes.pop() if len(outcomes) == 1 else "undetermined")


def read_bf(program: str) -> tuple[list[tuple[str, int]], dict[int, int]]:
    """The instructions, each with how often it comes in a row, and the partner of each bracket."""
    program = program.replace("[-]", "0")
    runs = re.finditer(r"(?P<token>[-+<>])(?P=token)*|.", program)
    instructions = [(run.group()[0], len(run.group())) for run in runs]
    partners = {}
    openings = []
    for place, (token, _) in enumerate(instructions):
        if token == "[":
            openings.append(place)
        elif token == "]":
            opening = openings.pop()
            partners[opening] = place
            partners[place] = opening
    return instructions, partners


def run_bf(program: str, most_steps: int = 3_000_000) -> str | None:
    """The output of a program. Cells are bytes, and there are cells left of the first. None if it takes too long."""
    instructions, partners = read_bf(program)
    cells: dict[int, int] = {}
    output = []
    pointer = place = 0
    for _ in range(most_steps):
        if place >= len(instructions):
            return "".join(output)
        token, times = instructions[place]
        cell = cells.get(pointer, 0)
        if token in "<>":
            pointer += times if token == ">" else -times
        elif token in "+-":
            cells[pointer] = (cell + (times if token == "+" else -times)) % 256
        elif token == "0":
            cells[pointer] = 0
        elif token == ".":
            output.append(chr(cell))
        elif (token == "[") == (cell == 0):
            place = partners[place]
        place += 1
    return None


def bf(question: str) -> Solution:
    """The output of a Brainf*ck program."""
    program = re.search(r"^[-+<>\[\].,]+$", question, re.MULTILINE).group()
    output = run_bf(program)
    return undecided("the program takes too long") if output is None else value(output)


SIDES_TO_TOP = {
    "front": ["top", "back", "bottom", "front"],
    "back": ["top", "front", "bottom", "back"],
    "left": ["top", "right", "bottom", "left"],
    "right": ["top", "left", "bottom", "right"],
}
"""From each of these sides, a quarter turn carries the face to the next; from the last, to the first."""


def color_cube_rotation(question: str) -> Solution:
    """The color of a side after some turns of a cube."""
    faces = {side: color for color, side in re.findall(r"^- an? (\w+) (\w+) side", question, re.MULTILINE)}
    turns = question.partition("rotated so that")[1:]
    sentences = [line for line in "".join(turns).splitlines() if re.search("rotated|turned|brought", line)]
    for sentence in sentences:
        if sentence.startswith("Whenever"):
            continue
        side = re.search(
            r"(front|back|left|right|bottom) (?:side|face)|at the (front|back|left|right|bottom) is", sentence
        )
        moved = side.group(1) or side.group(2)
        cycle = SIDES_TO_TOP["front" if moved == "bottom" else moved]
        for _ in range(2 if moved == "bottom" else 1):
            old = dict(faces)
            for origin, target in zip(cycle, cycle[1:] + cycle[:1], strict=True):
                faces[target] = old[origin]
    asked = re.search(r"color of the (\w+) side of the cube\?", question).group(1)
    return value(faces[asked])


GRID_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "sum": lambda row, column: row + column,
    "difference": lambda row, column: abs(row - column),
    "signed difference": lambda row, column: row - column,
    "product": lambda row, column: row * column,
    "row": lambda row, column: row,
    "column": lambda row, column: column,
    "sum of squares": lambda row, column: row**2 + column**2,
    "power": lambda row, column: row**column,
    "power of the column": lambda row, column: column**row,
}


def modulo_grid(question: str) -> Solution:
    """Cells are marked where a function of row and column leaves a certain rest. Undecided if two such rules differ."""
    grid = [line.strip() for line in question.splitlines() if line and set(line.strip()) <= set("❌✅❔")]
    grid = [line for line in grid if line]
    known = [
        (row, column, mark == "✅") for row, line in enumerate(grid) for column, mark in enumerate(line) if mark != "❔"
    ]
    completed = set()
    for base in (0, 1):
        for function in GRID_FUNCTIONS.values():
            for modulus in range(2, 101):
                completed |= complete_grid(grid, known, base, function, modulus)
    if len(completed) != 1:
        return undecided(f"{len(completed)} grids fit simple rules")
    return value(completed.pop())


def complete_grid(
    grid: Sequence[str],
    known: Sequence[tuple[int, int, bool]],
    base: int,
    function: Callable[[int, int], int],
    modulus: int,
) -> set[str]:
    """The completed grid, if a rest fits the known cells."""

    def rest_of(row: int, column: int) -> int:
        if function is GRID_FUNCTIONS["power"]:
            return pow(row + base, column + base, modulus)
        if function is GRID_FUNCTIONS["power of the column"]:
            return pow(column + base, row + base, modulus)
        return function(row + base, column + base) % modulus

    rest = next(rest_of(row, column) for row, column, is_marked in known if is_marked)
    if any((rest_of(row, column) == rest) != is_marked for row, column, is_marked in known):
        return set()
    rows = (
        "".join("✅" if rest_of(row, column) == rest else "❌" for column in range(len(line)))
        for row, line in enumerate(grid)
    )
    return {"\n".join(rows)}


MALE_NAMES = """
    Aiden Alexander Andrew Axel Benjamin Charles Christopher Daniel David Edward Ethan George Harry Henry Jack Jacob
    James John Joseph Liam Lucas Mason Matthew Michael Noah Oliver Owen Peter Richard Robert Samuel Sebastian
    Theodore Thomas William
"""
FEMALE_NAMES = """
    Abigail Alice Amelia Anna Aria Aurora Ava Barbara Charlotte Chloe Eleanor Elizabeth Emily Emma Grace Hannah
    Isabella Jennifer Jessica Karen Lily Linda Lisa Lucy Luna Margaret Mary Mia Olivia Patricia Sarah Sophia Sophie
    Susan Victoria Zoe
"""
RELATIONS = {
    "parent": ("father", "mother"),
    "child": ("son", "daughter"),
    "spouse": ("husband", "wife"),
    "sibling": ("brother", "sister"),
    "grandparent": ("grandfather", "grandmother"),
    "grandchild": ("grandson", "granddaughter"),
    "parent in law": ("father-in-law", "mother-in-law"),
    "child in law": ("son-in-law", "daughter-in-law"),
    "sibling in law": ("brother-in-law", "sister-in-law"),
    "sibling of a parent": ("uncle", "aunt"),
    "child of a sibling": ("nephew", "niece"),
    "cousin": ("cousin", "cousin"),
}


def family_relationships(question: str) -> Solution:
    """How one person is related to another. If no sentence says the sex of a person, the first name does."""
    family = r"(\w+) is married to (\w+)\.(?: They have (?:a child|children) called ([^.]*)\.)?"
    spouses: dict[str, set[str]] = {}
    parents: dict[str, set[str]] = {}
    for husband, wife, children in re.findall(family, question):
        spouses.setdefault(husband, set()).add(wife)
        spouses.setdefault(wife, set()).add(husband)
        for child in re.findall(r"[A-Z]\w+", children):
            parents[child] = {husband, wife}

    def parents_of(people: set[str]) -> set[str]:
        return set().union(*(parents.get(person, set()) for person in people))

    def children_of(people: set[str]) -> set[str]:
        return {child for child, couple in parents.items() if couple & people}

    def spouses_of(people: set[str]) -> set[str]:
        return set().union(*(spouses.get(person, set()) for person in people))

    def siblings_of(people: set[str]) -> set[str]:
        return children_of(parents_of(people)) - people

    subject, other = re.search(r"(?:is|What is|relation is) (\w+) (?:related )?to (\w+)\?", question).groups()
    me = {other}
    aunts_and_uncles = siblings_of(parents_of(me))
    relatives = {
        "parent": parents_of(me),
        "child": children_of(me),
        "spouse": spouses_of(me),
        "sibling": siblings_of(me),
        "grandparent": parents_of(parents_of(me)),
        "grandchild": children_of(children_of(me)),
        "parent in law": parents_of(spouses_of(me)),
        "child in law": spouses_of(children_of(me)),
        "sibling in law": siblings_of(spouses_of(me)) | spouses_of(siblings_of(me)),
        "sibling of a parent": aunts_and_uncles | spouses_of(aunts_and_uncles),
        "child of a sibling": children_of(siblings_of(me) | siblings_of(spouses_of(me))),
        "cousin": children_of(aunts_and_uncles),
    }
    is_male = f"{subject} is male" in question or subject in MALE_NAMES.split()
    is_female = f"{subject} is female" in question or subject in FEMALE_NAMES.split()
    if is_male == is_female:
        return undecided(f"{subject} may be a man or a woman")
    fitting = [relation for relation, people in relatives.items() if subject in people]
    if len(fitting) != 1:
        return undecided(f"these relations fit: {fitting}")
    return value(RELATIONS[fitting[0]][0 if is_male else 1])
