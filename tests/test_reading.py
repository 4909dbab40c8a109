"""Safetensors read with NumPy alone: what the package safetensors writes, and no file that lies."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from safetensors import SafetensorError
from safetensors.numpy import load as parse_with_the_package
from safetensors.numpy import save as format_safetensors

from understudy.reading import DTYPES, parse_arrays, parse_header

DATA = np.arange(6, dtype=np.float32).tobytes()
GOOD = {
    "one": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "two": {"dtype": "U8", "shape": [8], "data_offsets": [16, 24]},
}


def read(file: bytes):
    length = int.from_bytes(file[:8], "little")
    return parse_arrays(parse_header(file[8 : 8 + length]), file[8 + length :])


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype and array.shape == theirs[name].shape
        assert array.tobytes() == theirs[name].tobytes()
        assert array.flags.owndata and array.flags.aligned and array.flags.writeable


ARRAYS = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0, min_side=0))
)


@given(st.dictionaries(st.text(max_size=5).filter(lambda name: name != "__metadata__"), ARRAYS))
def test_what_the_package_writes_is_read(arrays):
    file = format_safetensors(arrays, {"about": "äöü"})
    assert_same(read(file), parse_with_the_package(file))
    assert_same(read(file), {name: np.array(array) for name, array in arrays.items()})


def changed(**entries):
    return json.dumps({"one": GOOD["one"] | entries, "two": GOOD["two"]}).encode()


def second(begin, end):
    return json.dumps(GOOD | {"two": GOOD["two"] | {"data_offsets": [begin, end]}}).encode()


TWICE = json.dumps(GOOD).replace('"two"', '"one"').encode()
FAR = json.dumps({"one": {"dtype": "U8", "shape": [2**47], "data_offsets": [0, 2**47]}}).encode()
HOSTILE = {
    "an overlap": (second(8, 16), "begins at 8, where 16 was expected"),
    "a gap": (changed(shape=[2], data_offsets=[0, 8]), "begins at 16, where 8 was expected"),
    "an array at the place of another": (second(0, 8), "where"),
    "an end behind the file's": (second(17, 25), "ends behind the end"),
    "a place far behind the file's end": (FAR, "ends behind the end"),
    "an end before the beginning": (second(24, 16), "does not fill"),
    "offsets below 0": (second(-8, 0), "no counts"),
    "offsets that are no whole numbers": (changed(data_offsets=[0, 16.0]), "no counts"),
    "offsets that are flags": (changed(data_offsets=[False, 16]), "no counts"),
    "three offsets": (changed(data_offsets=[0, 16, 16]), "does not fill"),
    "offsets that are a text": (changed(data_offsets="ab"), "no counts"),
    "offsets beyond 64 bits": (changed(data_offsets=[0, 2**70]), "no counts"),
    "a larger shape": (changed(shape=[2, 3]), "does not fill"),
    "a smaller shape": (changed(shape=[3]), "does not fill"),
    "a negative shape": (changed(shape=[-2, -2]), "no counts"),
    "a shape whose product overflows": (changed(shape=[2**33, 2**31]), "does not fill"),
    "a shape that multiplies to 0": (changed(shape=[0, 2**47]), "does not fill"),
    "more axes than NumPy has": (changed(shape=[1] * 100 + [4]), "no counts"),
    "a product that takes minutes": (changed(shape=[2**47] * 10**5), "no counts"),
    "a wider dtype": (changed(dtype="F64"), "does not fill"),
    "a dtype that NumPy lacks": (changed(dtype="BF16"), "has the dtype 'BF16'"),
    "an object": (changed(dtype="O"), "has the dtype 'O'"),
    "a dtype that is a list": (changed(dtype=["F32"]), "has the dtype"),
    "no shape": (json.dumps({"one": {"dtype": "F32", "data_offsets": [0, 24]}}).encode(), "needs"),
    "more than there is to say": (changed(more=1), "needs exactly"),
    "an entry that is a number": (b'{"one": 1}', "needs exactly"),
    "no array at all": (b"{}", "the arrays end at 0, the data at 24"),
    "a name that occurs twice": (TWICE, "occurs twice"),
    "a list": (b"[]", "no JSON object"),
    "a space before the header": (b" " + json.dumps(GOOD).encode(), "no JSON object"),
    "half a header": (json.dumps(GOOD).encode()[:-5], "Expecting"),
    "bytes that are no text": (b'{"\xff": 1}', "decode"),
    "numbers in the metadata": (b'{"__metadata__": {"a": 1}}', "no table of texts"),
    "metadata that are a list": (b'{"__metadata__": []}', "no table of texts"),
}  # fmt: skip


def test_a_good_file_is_read():
    found = read(len(changed()).to_bytes(8, "little") + changed() + DATA)
    np.testing.assert_array_equal(found["one"], [[0, 1], [2, 3]])
    assert found["two"].tobytes() == DATA[16:]


@pytest.mark.fault(28, "an array that overlaps another, or lies outside of a policy file: refused")
@pytest.mark.parametrize("lie", HOSTILE)
def test_a_header_that_lies_is_refused(lie):
    header, words = HOSTILE[lie]
    with pytest.raises(ValueError, match=words):
        read(len(header).to_bytes(8, "little") + header + DATA)


@given(st.integers(0, 10**6), st.integers(0, 255), st.sampled_from(["set", "cut", "insert"]))
def test_no_file_is_read_that_the_package_refuses(place, value, deed):
    header = changed()
    file = len(header).to_bytes(8, "little") + header + DATA
    place %= len(file)
    rest = {"set": file[place + 1 :], "cut": b"", "insert": file[place:]}[deed]
    file = file[:place] + bytes([value]) + rest
    try:
        ours = read(file)
    except ValueError:
        return
    try:
        assert_same(ours, parse_with_the_package(file))
    except SafetensorError as error:
        pytest.fail(f"{file!r}: {error}")
