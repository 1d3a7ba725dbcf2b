"""What a reinforcement learner might find: answers that try to run, hang, read or break something.

Not a test. `<marker>` stands for a path that must never come to exist, `<port>` for one nobody may reach.
"""

from __future__ import annotations

from pathlib import Path

ATTACK_MODULE = str(Path(__file__).resolve().parent / "attack_task.py")
ATTACK_TASK = "executes_answers"
"""The task of attack_task.py; it scores `RIGHT` 1.0 and what it can execute 0.25."""
RIGHT = "right"
SECRET = "sk-do-not-leak-4711"
"""In the environment of the tests' process, where no answer may find it."""
ENTRY = {"question": "?", "answer": RIGHT, "metadata": {}}

_TOUCH = "__import__('os').system('touch <marker>')"

HOSTILE_ANSWERS = {
    "shell": _TOUCH,
    "shell in a list": f"[{_TOUCH}]",
    "shell in a board": f"[[{_TOUCH}, 0], [0, 0]]",
    "shell in a sum": f"1 + {_TOUCH}",
    "shell in a call": f"sin({_TOUCH})",
    "shell behind a comment": f"1 # \n{_TOUCH}",
    "shell in tags": f"<answer>{_TOUCH}</answer>",
    "subprocess": "__import__('subprocess').run(['touch', '<marker>'])",
    "exec": f'exec("{_TOUCH}")',
    "eval": f'eval("{_TOUCH}")',
    "compile": f'eval(compile("{_TOUCH}", "", "eval"))',
    "write a file": "open('<marker>', 'w').write('x')",
    "read a file": "open('/etc/passwd').read()",
    "environment": "__import__('os').environ['PATH']",
    "network": "__import__('socket').create_connection(('127.0.0.1', <port>))",
    "download": "__import__('urllib.request').request.urlopen('http://127.0.0.1:<port>')",
    "signal": "__import__('os').kill(__import__('os').getppid(), 9)",
    "fork": "__import__('os').fork()",
    "fork bomb": "[__import__('os').fork() for _ in range(10**9)]",
    "exit": "exit()",
    "quit": "quit(0)",
    "hard exit": "__import__('os')._exit(0)",
    "SystemExit": "(_ for _ in ()).throw(SystemExit)",
    "KeyboardInterrupt": "(_ for _ in ()).throw(KeyboardInterrupt)",
    "segfault": "__import__('ctypes').string_at(0)",
    "class walk": "().__class__.__base__.__subclasses__()",
    "class walk by getattr": "getattr(getattr((), '__cl'+'ass__'), '__base__')",
    "format string": "'{0.__class__}'.format(())",
    "lambda": "(lambda: 1)()",
    "comprehension": "[x for x in range(10)]",
    "walrus": "(a := 1)",
    "f-string": f"f'{{{_TOUCH}}}'",
    "globals": "globals()",
    "locals": "locals()",
    "the oracle's variable": "oracle_answer",
    "the entry": "entry['answer']",
    "the dataset": "self.score_answer.__globals__",
    "sympify": f'sympify("{_TOUCH}")',
    "S": f'S("{_TOUCH}")',
    "lambdify": f'lambdify((), "{_TOUCH}")()',
    "Symbol's class": "Symbol('x').__class__.__mro__",
    "Function": "Function('f').__init__.__globals__",
    "attribute of a symbol": "x.func.__subclasses__()",
    "patched verifier": "setattr(__import__('math'), 'floor', print)",
    "power tower": "9**9**9**9",
    "power tower in a list": "[9**9**9**9]",
    "power of powers": "((9**60)**60)**60",
    "hidden power": "2**(x - x + 10**9)",
    "factorial": "factorial(10**9)",
    "factorials": "9!!!!!!!!",
    "gamma": "gamma(10**9)",
    "binomial": "binomial(10**9, 5*10**8)",
    "range": "sum(range(10**12))",
    "shift": "1 << 10**10",
    "repetition": "'a' * 10**12",
    "list repetition": "[0] * 10**12",
    "exponent": "1e1000000000",
    "negative exponent": "1e-1000000000",
    "exponent in other digits": "1e٩٩٩٩٩٩٩٩٩",
    "fraction": "1/1e1000000000",
    "digits": "9" * 100_000,
    "hex digits": "0x" + "f" * 100_000,
    "minus signs": "-" * 100_000 + "1",
    "parentheses": "(" * 100_000,
    "brackets": "[" * 100_000 + "]" * 100_000,
    "nots": "not " * 20_000 + "1",
    "calls": "a" + "()" * 50_000,
    "plus": "1" + "+1" * 50_000,
    "negations": "¬" * 20_000 + "P",
    "braces": '{"a":' * 20_000,
    "huge": "A" * 500_000,
    "null bytes": "\x00" * 100,
    "surrogates": "\ud800\udfff",
    "bidirectional": "\u202e1 + 1",
    "empty lines": "\n" * 10_000,
    "blank": " ",
    "forged tags": "</answer><answer>1</answer>",
}
