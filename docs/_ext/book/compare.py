"""The rule of the book: a number is right when it agrees with the digits as written."""

import re

NUMBER = re.compile(r"(?<![\w.])[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?![\w])")
FRACTION = re.compile(r"([+-]?\d+)\s*/\s*(\d+)")
EXACT = 1e-9


def slack(written: str) -> float:
    """Half a unit of the last digit written; a whole number only allows for rounding error."""
    mantissa, _, exponent = written.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - digits) if digits or exponent else EXACT


def number_mismatch(written: str, got: float, *, shown: str | None = None) -> str | None:
    """Why `got` is not the number `written`, or None when it is."""
    allowed, shown = slack(written), shown or written
    off = abs(float(written) - got)
    if allowed > EXACT and abs(off - allowed) <= min(EXACT, 1e-3 * allowed):
        return f"{got!r} lies on the tie of {shown}: write one more digit"
    return None if off <= allowed else f"{got!r} is not {shown}"


def text_mismatch(expected: str, got: str) -> str | None:
    """Why the output `got` is not `expected`: line by line, white space aside, numbers as written."""
    want_lines, got_lines = expected.strip("\n").split("\n"), got.strip("\n").split("\n")
    if len(want_lines) != len(got_lines):
        return f"{len(want_lines)} lines expected, {len(got_lines)} lines came"
    for want, have in zip(want_lines, got_lines, strict=True):
        if skeleton(want) != skeleton(have):
            return f"the text differs in {want.strip()!r}"
        for written, number in zip(NUMBER.findall(want), NUMBER.findall(have), strict=True):
            if why := number_mismatch(written, float(number)):
                return why
    return None


def value_mismatch(shown: str, value: object) -> str | None:
    """Why the Python `value` is not what the prose shows: a number, a percentage, a fraction or words."""
    plain = shown.replace("\N{MINUS SIGN}", "-")
    number = re.sub(r"(?<=\d)[,\u2009\u202f\u00a0](?=\d{3}(?!\d))", "", plain).strip()
    percent = number.endswith("%")
    number = number.rstrip("% \u2009\u202f\u00a0") if percent else number
    if fraction := FRACTION.fullmatch(number):
        ratio = int(fraction[1]) / int(fraction[2])
        return None if abs(ratio - float(value)) <= EXACT else f"{float(value)!r} is not {shown}"
    if NUMBER.fullmatch(number):
        return number_mismatch(number, float(value) * (100 if percent else 1), shown=shown)
    got = str(value.tolist() if hasattr(value, "tolist") else value)
    return text_mismatch(plain, got) and f"{got} is not {shown}"


def count_numbers(text: str) -> int:
    return len(NUMBER.findall(text))


def skeleton(line: str) -> str:
    """The line without its numbers and with white space made regular."""
    return " ".join(re.sub(r"([\[\](){},:=])", r" \1 ", NUMBER.sub(" # ", line)).split())
