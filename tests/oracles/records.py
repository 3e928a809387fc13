"""The record of agreement: what `docs/_data/oracles.json` says, written by a recording run and held by every other.

A record gives the largest difference seen, rounded up to one digit, and a floor: what two correct programs may differ
by when they add the same numbers in another order, as two builds of a linear algebra library do. Rounding errors of a
sum grow as the root of the number of terms, and no sum here is longer than 64, so the floor is eight units of the last
place of the largest result; a narrow type is computed wide and rounded once. A comparison without sums says
`exact=True`: its floor is zero, and a recorded zero stays zero.
"""

import json
import math
import pathlib

import numpy as np
import pytest

FILE = pathlib.Path(__file__).parents[2] / "docs" / "_data" / "oracles.json"
FLOOR = {"float64": 8 * 2.0**-52, "float32": 8 * 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def round_up(number):
    """The smallest number of one digit that is not below `number`."""
    if number == 0:
        return 0.0
    unit = math.floor(math.log10(number))
    digit = math.ceil(number / 10.0**unit * (1 - 1e-12))
    return float(f"{digit}e{unit}")


def largest_difference(ours, theirs):
    """The largest absolute difference of two NumPy arrays of one shape; what is not finite must be the same."""
    assert ours.shape == theirs.shape, f"ours has shape {ours.shape}, theirs {theirs.shape}"
    finite = np.isfinite(theirs)
    np.testing.assert_array_equal(ours[~finite], theirs[~finite])
    assert np.isfinite(ours[finite]).all(), "ours is not finite where theirs is"
    return float(np.max(np.abs(ours[finite] - theirs[finite]), initial=0.0))


class Records:
    """The records of one run."""

    KEY = pytest.StashKey()

    def __init__(self, *, recording, file=FILE):
        self.recording, self.file = recording, file
        stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        self.stored = {self.key(record): record for record in stored}
        self.new = {}

    @staticmethod
    def key(record):
        return record["function"], record["stranger"], record["dtype"]

    def agree(self, ours, theirs, *, function, stranger, version, dtype, exact=False, clash=None):
        """Hold `ours` to `theirs`: within the recorded difference, or recorded now if this is a recording run."""
        ours, theirs = (np.asarray(a, dtype=np.float64) for a in (ours, theirs))
        assert theirs.size, "a comparison with nothing to compare"
        difference = largest_difference(ours, theirs)
        size = float(np.max(np.abs(theirs[np.isfinite(theirs)]), initial=0.0))
        floor = 0.0 if exact else round_up(FLOOR[dtype] * size)
        record = {"function": function, "stranger": stranger, "version": version, "dtype": dtype}
        record |= {"difference": round_up(difference), "floor": floor, "clash": clash}
        key, name = self.key(record), f"{function} / {stranger} / {dtype}"
        if self.recording:
            self.new[key] = self.widest(record, self.new.get(key, record))
            return
        assert key in self.stored, f"no record of {name}: run `python tests --record` and read the difference"
        held = self.stored[key]
        assert held["clash"] == clash, f"the record of {name} names another clash: {held['clash']}"
        allowed = max(held["difference"], held["floor"])
        assert difference <= allowed, f"{name}: {difference:.2e} apart, the record allows {allowed:.0e}"

    @staticmethod
    def widest(one, other):
        """One record for several comparisons: the largest difference and the largest floor."""
        return one | {name: max(one[name], other[name]) for name in ("difference", "floor")}

    def save(self):
        """Write what a recording run saw; records of comparisons that this run did not make stay."""
        if not self.new:
            return
        merged = self.stored | self.new
        lines = ",\n".join(f"  {json.dumps(merged[key])}" for key in sorted(merged))
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(f"[\n{lines}\n]\n", encoding="utf-8", newline="\n")
