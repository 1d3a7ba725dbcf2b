"""Strict checks of answers that are moves or plans: carried out here, step by step.

The verifiers pass over what cannot be carried out, so that random walks and sweeps solve what is small.
"""

from __future__ import annotations

import re
from typing import Literal

from .check import BELOW_FULL_CREDIT, SOME_CREDIT, Entry, is_wrapped, loads, refuses

# The verifier takes any two numbers for a square: `not Agent[-0.5, 1.5]`. It passes over an order without its blank.
_PLACE = re.compile(r"(\w+)\[\s*([0-9]+\.?[0-9]*)\s*,\s*([0-9]+\.?[0-9]*)\s*\]")
_MAX_ORDER = 200
"""Characters."""
_MOVE = re.compile(r"move\((box_[^,()]*),\s([^()]*)\)\s*")


@refuses("the plan cannot be carried out", credit_from=SOME_CREDIT)
def boxnet(entry: Entry, answer: str) -> bool:
    """Every order moves a box that is there, to a square beside it or onto its target. It may stop halfway."""
    squares = {place: list(items) for place, items in entry["metadata"]["initial_state"].items()}
    for step in loads(answer):
        moved = set()
        for agent, order in step.items():
            place = _square("Agent", agent)
            if place is None or place in moved or not _carry_out(order, place, squares):
                return False
            moved.add(place)
    return True


def _square(what: str, text: str) -> tuple[float, float] | None:
    place = _PLACE.fullmatch(text) if len(text) <= _MAX_ORDER else None
    return (float(place[2]), float(place[3])) if place is not None and place[1] == what else None


def _carry_out(order: str, place: tuple[float, float], squares: dict[str, list[str]]) -> bool:
    here = squares.get(f"{place[0]}_{place[1]}")
    move = _MOVE.fullmatch(order) if len(order) <= _MAX_ORDER else None
    if here is None or move is None or move[1] not in here:
        return False
    if move[2] == move[1].replace("box_", "target_", 1) and move[2] in here:
        here.remove(move[2])
    else:
        beside = _square("square", move[2])
        if beside is None or abs(place[0] - beside[0]) + abs(place[1] - beside[1]) != 1:
            return False
        there = squares.get(f"{beside[0]}_{beside[1]}")
        if there is None:
            return False
        there.append(move[1])
    here.remove(move[1])
    return True


_WAYS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}


@refuses("it comes to a cell twice", credit_from=SOME_CREDIT, credit_to=BELOW_FULL_CREDIT)
def shortest_path(entry: Entry, answer: str) -> bool:
    """Half is for a way that is longer than it need be, not for a walk about the grid that meets the end somewhere."""
    words, row, column = answer.split(), 0, 0
    seen = {(row, column)}
    for down, right in (_WAYS[word] for word in words if word in _WAYS):
        row, column = row + down, column + right
        seen.add((row, column))
    return len(seen) == len(words) + 1


_STEPS = {"L": (0, -1), "R": (0, 1), "U": (-1, 0), "D": (1, 0)}
MAX_BLOCKED = 0.1
"""As a share of the moves that lead to something new; one is always allowed. An honest solution bumps into a wall once
or twice; a random walk does all the time, and going to and fro in between makes it no better."""


def _most_blocked(new: int) -> float:
    return max(min(1, new), MAX_BLOCKED * new)


@refuses("too many of its moves are blocked, or there is more in it than moves")
def sokoban(entry: Entry, answer: str) -> bool:
    """Steps into a wall, or against a box that is stuck, are passed over: a long random walk solves small puzzles."""
    if not is_wrapped(answer, "[LRUD]", "→"):
        return False
    rows = entry["metadata"]["gamestr"].replace(" ", "").strip().split("\n")
    cells = {(row, column): char for row, line in enumerate(rows) for column, char in enumerate(line)}
    boxes = {place for place, char in cells.items() if char in "@$"}
    at = next(place for place, char in cells.items() if char in "*%")
    blocked, seen = 0, {(at, frozenset(boxes))}
    for down, right in (_STEPS[move] for move in answer if move in _STEPS):
        ahead, behind = (at[0] + down, at[1] + right), (at[0] + 2 * down, at[1] + 2 * right)
        is_pushed = ahead in boxes
        if cells.get(ahead, "+") == "+" or (is_pushed and (behind in boxes or cells.get(behind, "+") == "+")):
            blocked += 1
            continue
        if is_pushed:
            boxes.remove(ahead)
            boxes.add(behind)
        at = ahead
        seen.add((at, frozenset(boxes)))
    return blocked <= _most_blocked(len(seen) - 1)


@refuses("there is more in it than moves")
def rubiks_cube(entry: Entry, answer: str) -> bool:
    """What has a number at its beginning or within is passed over."""
    return all(_CUBE_MOVE.fullmatch(word) for word in answer.split())


_CUBE_MOVE = re.compile(r"(?:[LRUDBF]w?|[XYZMES])'?[0-9]*")

# As the verifier reads them: digits of every script.
_CAR_MOVE = re.compile(r"([A-Z])([+-])(\d+)")
_RUSH_HOUR_SIZE = 6


@refuses("too many of its moves are blocked, or there is more in it than moves")
def rush_hour(entry: Entry, answer: str) -> bool:
    """Moves through another car, a wall or the edge are passed over, so that a sweep may solve it."""
    # A car may be named as it is drawn: `AA+3`.
    if not is_wrapped(re.sub(r"\bmoves\b", " ", answer), r"([A-Z])\1{0,2}[+-]\d+"):
        return False
    board = cars_as_asked(entry)
    blocked, seen = 0, {tuple(board)}
    for car, sign, steps in _CAR_MOVE.findall(answer):
        if int(steps) > _RUSH_HOUR_SIZE:
            return False
        for _ in range(int(steps)):
            blocked += not move_car(board, car, 1 if sign == "+" else -1)
            seen.add(tuple(board))
    return blocked <= _most_blocked(len(seen) - 1)


def cars_as_asked(entry: Entry) -> list[str]:
    """The 36 squares of rush_hour, row by row. The question names the cars anew, in the order of their letters."""
    config = str(entry["metadata"]["board_config"])
    named = {label: chr(ord("A") + index) for index, label in enumerate(sorted({*config} - {"o", "x"}))}
    return [named.get(label, label) for label in config]


def move_car(board: list[str], car: str, way: Literal[1, -1]) -> bool:
    """Moves a car by one square, right or down (1), or back (-1). False, and nothing moved, where that is blocked."""
    places = [place for place, label in enumerate(board) if label == car]
    if len(places) < 2:
        return False
    along = places[1] - places[0]
    front, rear = (places[-1], places[0])[::way]
    ahead = front + way * along
    is_over_the_edge = along == 1 and ahead // _RUSH_HOUR_SIZE != front // _RUSH_HOUR_SIZE
    if not 0 <= ahead < len(board) or is_over_the_edge or board[ahead] != "o":
        return False
    board[ahead], board[rear] = car, "o"
    return True


@refuses("its own buttons do not lead to the target", credit_from=SOME_CREDIT)
def quantum_lock(entry: Entry, answer: str) -> bool:
    """The presses of the answer alone: every A, B or C in the words and tags around it counts as one more."""
    if not is_wrapped(answer.replace("->", "→"), _PRESSES, "→"):
        return False
    metadata = entry["metadata"]
    buttons = {button["name"]: button for button in metadata["buttons"]}
    value, light = metadata["initial_value"], metadata["initial_state"]
    for name in "".join(re.findall(_PRESSES, answer)).upper():
        button = buttons.get(name)
        if button is not None and button["active_state"] in (light, "any"):
            amount = button["value"]
            if button["type"] == "multiply":
                value *= amount
            else:
                value += amount if button["type"] == "add" else -amount
            light = "green" if light == "red" else "red"
        if abs(value) > _MAX_LOCK:
            return False
    return bool(value == metadata["target_value"])


_PRESSES = r"\b[A-Ca-c]+\b"
_MAX_LOCK = 10**100
