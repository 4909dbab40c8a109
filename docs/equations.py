"""Write the TeX equations of the docs as MathML, which browsers show without scripts or fonts.

Only the commands that the docs use are known. An unknown command is an error, so that no equation
of the site is wrong unnoticed.
"""

import re
from collections.abc import Callable
from html import escape
from typing import ClassVar, NamedTuple, final

GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ϵ", "varepsilon": "ε",
    "zeta": "ζ", "eta": "η", "theta": "θ", "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν",
    "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "ϕ", "varphi": "φ",
    "chi": "χ", "psi": "ψ", "omega": "ω", "Gamma": "Γ", "Delta": "Δ", "Theta": "Θ",
    "Lambda": "Λ", "Sigma": "Σ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω",
}  # fmt: skip
LETTERS = GREEK | {"ell": "ℓ", "infty": "∞", "nabla": "∇", "partial": "∂", "_": "_", "%": "%"}
OPERATORS = {
    "cdot": "⋅", "times": "×", "leftarrow": "←", "to": "→", "sim": "∼", "mid": "|", "approx": "≈",
    "propto": "∝", "le": "≤", "ge": "≥", "ne": "≠", "in": "∈", "odot": "⊙", "pm": "±", "ll": "≪",
    "dots": "…", "ldots": "…", "cdots": "⋯", "oplus": "⊕", "equiv": "≡", "circ": "∘",
}  # fmt: skip
LARGE = {"sum": "∑", "prod": "∏", "int": "∫"}
LIMITED = {"min", "max", "sup", "inf", "argmin", "argmax"}  # their indices go below
FUNCTIONS = LIMITED | {"log", "exp", "tanh", "sin", "cos", "arg", "det"}
SPACES = {",": 0.167, ":": 0.222, ";": 0.278, "!": -0.167, " ": 0.25, "quad": 1.0, "qquad": 2.0}
SIZES = {"big": 1.2, "bigl": 1.2, "bigr": 1.2, "Big": 1.8, "bigg": 2.4, "Bigg": 3.0}
ACCENTS = {"bar": "¯", "hat": "^", "tilde": "~", "vec": "→", "overline": "¯"}
FENCES = {"lVert": "‖", "rVert": "‖", "|": "‖", "lvert": "|", "rvert": "|", "{": "{", "}": "}",
          "langle": "⟨", "rangle": "⟩"}  # fmt: skip
SCRIPT_LETTERS = {"B": "ℬ", "E": "ℰ", "F": "ℱ", "H": "ℋ", "I": "ℐ", "L": "ℒ", "M": "ℳ", "R": "ℛ"}
DOUBLE_LETTERS = {"C": "ℂ", "H": "ℍ", "N": "ℕ", "P": "ℙ", "Q": "ℚ", "R": "ℝ", "Z": "ℤ"}

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[^\s]")


class Atom(NamedTuple):
    """A piece of an equation. `kind` decides the space around it."""

    kind: str  # ordinary, function, open, close, bar, sign, space, relation
    xml: str


def to_mathml(tex: str, display: bool = False) -> str:
    """Convert an equation. `display` puts it on a line of its own."""
    tex = re.sub(r"\\\s", r"\\ ", tex)
    tex = re.sub(r"\\text\{[^}]*\}", lambda text: re.sub(r"(?<!\\) ", r"\\ ", text[0]), tex)
    parser = _Parser(tex, display)
    row = parser.row()
    if parser.peek():
        raise ValueError(f"'{parser.peek()}' has no beginning in the equation {tex.strip()}")
    kind = ' display="block"' if display else ""
    return f"<math{kind}>{row}</math>"


def split_line(tex: str) -> list[str]:
    """Divide a line at each wide space: its equations may stand below one another on a phone."""
    parts, depth, start = [], 0, 0
    for mark in re.finditer(r"\\qquad|(?<!\\)[{}]|\\(?:left|begin|right|end)\b", tex):
        if mark[0] == "\\qquad" and depth == 0:
            parts.append(tex[start : mark.start()])
            start = mark.end()
        elif mark[0] != "\\qquad":
            depth += 1 if mark[0] in ("{", "\\left", "\\begin") else -1
    return [part for part in [*parts, tex[start:]] if part.strip()]


def _join(atoms: list[Atom]) -> str:
    """Join the atoms, with thin spaces around functions such as log."""
    thin, parts, before = _space(SPACES[","]), [], "open"
    for kind, xml in atoms:
        operand = before in ("ordinary", "close", "function")
        if (kind == "function" and operand) or (before == "function" and kind == "ordinary"):
            parts.append(thin)
        if kind == "sign" and before in ("open", "relation", "sign"):
            xml = xml.replace("<mo", '<mo form="prefix"', 1)  # the sign of a number
        parts.append(xml)
        before = before if kind == "space" and before != "function" else kind
    return "".join(parts)


def _space(width: float) -> str:
    return f'<mspace width="{width}em"></mspace>'


def _tag(name: str, *parts: str) -> str:
    return f"<{name}>{''.join(parts)}</{name}>"


def _operator(text: str, attributes: str = ' stretchy="false"') -> str:
    return f"<mo{attributes}>{escape(text)}</mo>"


@final
class _Parser:
    def __init__(self, tex: str, display: bool):
        self._tex, self._display = tex, display
        self._tokens, self._at = _TOKEN.findall(tex), 0

    def peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        if not self.peek():
            raise ValueError(f"an argument is missing at the end of the equation {self._tex}")
        self._at += 1
        return self._tokens[self._at - 1]

    def row(self, *ends: str) -> str:
        """Convert everything up to a closing brace or one of `ends`."""
        atoms = []
        while self.peek() and self.peek() not in ("}", "\\right", *ends):
            atoms.append(self._with_scripts(self._atom(many_digits=True)))
        return _tag("mrow", _join(atoms))

    def _argument(self) -> str:
        if self.peek() == "{":
            return self._group()
        return self._atom(many_digits=False).xml

    def _group(self) -> str:
        self._next()
        row = self.row()
        if self.peek() != "}":
            raise ValueError(f"a closing brace is missing in the equation {self._tex}")
        self._next()
        return row

    def _with_scripts(self, atom: Atom) -> Atom:
        below, above, primes = "", "", ""
        limits = atom.kind in ("limited", "large")
        kind = {"limited": "function", "large": "relation"}.get(atom.kind, atom.kind)
        while self.peek() in ("_", "^", "'"):
            mark = self._next()
            if mark == "'":
                primes += "′"
            elif mark == "_":
                below = self._argument()
            else:
                above = self._argument()
        above = _tag("mrow", _operator(primes), above) if primes else above
        under = limits and self._display
        names = ("munder", "mover", "munderover") if under else ("msub", "msup", "msubsup")
        if below or above:
            name = names[2] if below and above else names[0] if below else names[1]
            return Atom(kind, _tag(name, atom.xml, below, above))
        return Atom(kind, atom.xml)

    def _atom(self, many_digits: bool) -> Atom:
        token = self._next()
        if token.startswith("\\"):
            return self._command(token[1:])
        if token == "{":
            self._at -= 1
            return Atom("ordinary", self._group())
        if token.isdigit():
            while many_digits and re.fullmatch(r"[\d.]", self.peek()):
                token += self._next()
            return Atom("ordinary", _tag("mn", token))
        if token.isalpha():
            return Atom("ordinary", _tag("mi", token))
        if token in "([":
            return Atom("open", _operator(token))
        if token in ")]":
            return Atom("close", _operator(token))
        if token == "|":
            return Atom("bar", _operator("|", ' stretchy="false" lspace="0.1em" rspace="0.1em"'))
        if token in "+-":
            return Atom("sign", _operator({"-": "−"}.get(token, token)))
        return Atom("relation", _operator({"*": "∗"}.get(token, token)))

    def _command(self, name: str) -> Atom:
        if name in LETTERS:
            return Atom("ordinary", _tag("mi", LETTERS[name]))
        if name in OPERATORS:
            return Atom("relation", _operator(OPERATORS[name]))
        if name in LARGE:
            return Atom("large", _operator(LARGE[name], ""))
        if name in FUNCTIONS:
            return Atom("limited" if name in LIMITED else "function", _tag("mi", name))
        if name in SPACES:
            return Atom("space", _space(SPACES[name]))
        if name in FENCES:
            return Atom("bar", _operator(FENCES[name]))
        if name in SIZES:
            return self._sized(SIZES[name])
        if name in ACCENTS:
            accent = _operator(ACCENTS[name])
            kind = ' class="bar"' if name in ("bar", "overline") else ""
            whole = f'<mover accent="true"{kind}>{self._argument()}{accent}</mover>'
            return Atom("ordinary", whole)
        if name in self._structures:
            return self._structures[name](self)
        raise ValueError(f"docs/equations.py has no command \\{name}, in: {self._tex.strip()}")

    def _fence(self) -> tuple[str, str]:
        """Return a delimiter and its kind."""
        token = self._next()
        mark = FENCES.get(token[1:], token) if token.startswith("\\") else token
        kind = "open" if mark in "([{⟨" else "close" if mark in ")]}⟩" else "bar"
        return ("" if mark == "." else mark), kind

    def _sized(self, size: float) -> Atom:
        mark, kind = self._fence()
        sizes = f' stretchy="true" symmetric="true" minsize="{size}em" maxsize="{size}em"'
        return Atom(kind, _operator(mark, sizes))

    def _between(self) -> Atom:
        left, row = self._fence()[0], self.row()
        if self.peek() != "\\right":
            raise ValueError(f"\\right is missing in the equation {self._tex}")
        self._next()
        stretchy = ' stretchy="true"'
        right = self._fence()[0]
        return Atom(
            "ordinary",
            _tag("mrow", _operator(left, stretchy), row, _operator(right, stretchy)),
        )

    def _fraction(self) -> Atom:
        return Atom("ordinary", _tag("mfrac", self._argument(), self._argument()))

    def _small_fraction(self) -> Atom:
        fraction = _tag("mfrac", self._argument(), self._argument())
        return Atom("ordinary", f'<mstyle displaystyle="false" scriptlevel="0">{fraction}</mstyle>')

    def _root(self) -> Atom:
        return Atom("ordinary", _tag("msqrt", self._argument()))

    def _words(self) -> str:
        """Return the plain text of a group, which begins with an open brace."""
        if self.peek() != "{":
            return self._next()
        words = []
        self._next()
        while self.peek() != "}":
            token = self._next()
            words.append(token[1:] if token.startswith("\\") else token)
        self._next()
        return "".join(words)

    def _upright(self) -> Atom:
        return Atom("ordinary", f'<mi mathvariant="normal">{escape(self._words())}</mi>')

    def _function(self) -> Atom:
        return Atom("function", self._upright().xml)

    def _script_letter(self) -> Atom:
        letter = self._words()
        shown = SCRIPT_LETTERS.get(letter) or chr(0x1D49C + ord(letter) - ord("A"))
        return Atom("ordinary", _tag("mi", shown))

    def _double_letter(self) -> Atom:
        letter = self._words()
        shown = DOUBLE_LETTERS.get(letter) or chr(0x1D538 + ord(letter) - ord("A"))
        return Atom("ordinary", _tag("mi", shown))

    def _rows(self) -> Atom:
        """Convert an environment of rows: aligned or cases."""
        name, rows, cells = self._words(), [], []
        while True:
            cells.append(_tag("mtd", self.row("&", "\\\\", "\\end")))
            end = self._next()
            if end != "&":
                rows.append(_tag("mtr", *cells))
                cells = []
            if end == "\\end":
                break
        self._words()
        table = f'<mtable class="{escape(name)}">{"".join(rows)}</mtable>'
        brace = _operator("{", ' stretchy="true"') if name == "cases" else ""
        return Atom("ordinary", _tag("mrow", brace, table))

    _structures: ClassVar[dict[str, Callable[["_Parser"], Atom]]] = {
        "left": _between,
        "frac": _fraction,
        "tfrac": _small_fraction,
        "sqrt": _root,
        "mathrm": _upright,
        "text": _upright,
        "operatorname": _function,
        "mathcal": _script_letter,
        "mathbb": _double_letter,
        "begin": _rows,
    }
