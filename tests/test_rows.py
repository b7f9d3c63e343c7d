"""csb_rows_* against the same measures computed with numpy, in float64 and by other formulas."""

import numpy as np
import pytest
from csb.errors import ArgumentError
from csb.native import rows
from csb.native.table import Pair, Row

pytestmark = pytest.mark.native

# Both sides sum n <= 4097 terms in float64, in different orders, of an exp that is right to two
# units in the last place: at most 4097 * 2.2e-16 = 1e-12 relative, if all errors had one sign.
RTOL = 1e-12
SIZES = [1, 2, 7, 8, 9, 4097]
SCALES = {"logits": 3.0, "close": 1e-3, "extreme": 1e4}


def draw(n_vocab, scale, seed, n_rows=3):
    noise = np.random.default_rng([seed, n_vocab]).standard_normal((n_rows, n_vocab))
    return np.clip(noise * scale, -1e4, 1e4).astype(np.float32)


def logsumexp(row, temperature):
    x = row.astype(np.float64) / temperature
    return x.max() + np.log(np.exp(x - x.max()).sum())


def log_softmax(row, temperature):
    return row.astype(np.float64) / temperature - logsumexp(row, temperature)


def order(row):
    """Ids from the largest logit to the smallest, the lowest first among equals."""
    return np.argsort(-row, kind="stable")


def different_bits(a, b):
    return np.count_nonzero(a.view(np.uint32) != b.view(np.uint32))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("n_vocab", SIZES)
def test_summarise(n_vocab, scale, temperature):
    some = draw(n_vocab, scale, 1)
    targets = np.random.default_rng(2).integers(n_vocab, size=len(some))
    table = rows.summarise(some, targets, temperature)
    for row, target, got in zip(some, targets, table, strict=True):
        ids = order(row)
        assert got[Row.N_BAD] == 0
        assert got[Row.ARGMAX] == ids[0]
        assert got[Row.MAX] == row[ids[0]]
        assert got[Row.TARGET_L] == row[target]
        assert got[Row.RANK] == np.flatnonzero(ids == target)[0]
        if n_vocab > 1:
            assert got[Row.SECOND] == ids[1]
            assert got[Row.SECOND_L] == row[ids[1]]
        else:
            assert got[Row.SECOND] == -1
            assert np.isnan(got[Row.SECOND_L])
        expected = logsumexp(row, temperature)
        assert got[Row.LOGSUMEXP] == pytest.approx(expected, rel=RTOL, abs=RTOL)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("n_vocab", SIZES)
def test_compare(n_vocab, scale, temperature):
    a, b = draw(n_vocab, scale, 3), draw(n_vocab, scale, 4)
    b[1] = a[1] + np.float32(0.01) * b[1]
    b[2, : n_vocab // 2] = a[2, : n_vocab // 2]
    table = rows.compare(a, b, temperature)
    for x, y, got in zip(a, b, table, strict=True):
        d = x.astype(np.float64) - y
        log_p, log_q = log_softmax(x, temperature), log_softmax(y, temperature)
        p, q = np.exp(log_p), np.exp(log_q)
        assert got[Pair.N_DIFF] == different_bits(x, y)
        assert got[Pair.MAX_ABS] == np.abs(d).max()
        assert got[Pair.RMS] == pytest.approx(np.sqrt(np.mean(d**2)), rel=RTOL)
        # KL is a difference of sums as large as max |d| / temperature and logsumexp, each right
        # to RTOL of itself; TV's terms carry the error of log p, absolute in the exponent.
        error = RTOL * (1 + np.abs(d).max() / temperature + np.abs(log_p).max())
        assert got[Pair.KL] == pytest.approx(np.sum(p * (log_p - log_q)), abs=error)
        assert got[Pair.TV] == pytest.approx(np.abs(p - q).sum() / 2, abs=error)
        assert got[Pair.LSE_A] == pytest.approx(logsumexp(x, temperature), rel=RTOL, abs=RTOL)
        assert got[Pair.LSE_B] == pytest.approx(logsumexp(y, temperature), rel=RTOL, abs=RTOL)
        assert got[Pair.KL] >= 0
        assert 0 <= got[Pair.TV] <= 1 + RTOL


def test_equal_rows_differ_in_nothing():
    a = draw(4097, 3.0, 5)
    table = rows.compare(a, a.copy())
    np.testing.assert_array_equal(table[:, : Pair.LSE_A], 0)
    np.testing.assert_array_equal(table[:, Pair.LSE_A], table[:, Pair.LSE_B])


def test_no_distribution_is_worked_out_at_temperature_0():
    a = draw(4097, 3.0, 5)
    targets = [7] * len(a)
    with_it, without = rows.summarise(a, targets), rows.summarise(a, targets, temperature=0)
    assert np.isnan(without[:, Row.LOGSUMEXP]).all()
    others = [r for r in Row if r not in (Row.LOGSUMEXP, Row.N_FIELDS)]
    np.testing.assert_array_equal(without[:, others], with_it[:, others])


def test_a_shift_of_all_logits_changes_the_logits_and_not_the_distribution():
    a = np.float32([[1, 2, 3, 4, 5]])
    got = rows.compare(a, a + 16)[0]
    assert got[Pair.N_DIFF] == 5
    assert got[Pair.MAX_ABS] == got[Pair.RMS] == 16
    assert got[Pair.KL] == pytest.approx(0, abs=16 * RTOL)
    assert got[Pair.TV] == pytest.approx(0, abs=16 * RTOL)


def test_known_values():
    # softmax of [ln 1, ln 3] is [1/4, 3/4] and of [ln 1, ln 1] is [1/2, 1/2]
    a, b = np.log(np.float32([[1, 3]])), np.log(np.float32([[1, 1]]))
    got = rows.compare(a, b)[0]
    float32 = 1e-7  # ln 3 is rounded to float32
    assert got[Pair.KL] == pytest.approx(np.log(0.5) / 4 + np.log(1.5) * 3 / 4, abs=float32)
    assert got[Pair.TV] == pytest.approx(1 / 4, abs=float32)
    assert rows.summarise(a, [0])[0, Row.LOGSUMEXP] == pytest.approx(np.log(4), abs=float32)


@pytest.mark.parametrize("n_vocab", [2, 7, 16, 33, 4097])
def test_ties(n_vocab):
    grid = np.round(draw(n_vocab, 1.0, 6, n_rows=50) * 2) / 2  # few values, many of each
    targets = np.random.default_rng(7).integers(n_vocab, size=50)
    got = rows.summarise(grid, targets)
    ids = np.stack([order(row) for row in grid])
    np.testing.assert_array_equal(got[:, Row.ARGMAX], ids[:, 0])
    np.testing.assert_array_equal(got[:, Row.SECOND], ids[:, 1])
    np.testing.assert_array_equal(got[:, Row.RANK], np.argmax(ids == targets[:, None], axis=1))


@pytest.mark.parametrize("first", [0, 1, 15, 16, 4095])
def test_the_two_best_may_stand_anywhere(first):
    for second in (0, 1, 14, 17, 4096):
        if second == first:
            continue
        row = np.zeros((1, 4097), np.float32)
        row[0, first], row[0, second] = 2, 1
        got = rows.summarise(row, [second])[0]
        assert [got[Row.ARGMAX], got[Row.SECOND], got[Row.RANK]] == [first, second, 1]


def test_zeros_of_both_signs_are_equal_values_and_different_bits():
    row = np.float32([[-1, -0.0, 0.0, -0.0]])
    got = rows.summarise(row, [3])[0]
    assert [got[Row.ARGMAX], got[Row.SECOND], got[Row.RANK]] == [1, 2, 2]
    assert np.signbit(got[Row.MAX])
    assert not np.signbit(got[Row.SECOND_L])
    pair = rows.compare(row, np.float32([[-1, 0.0, 0.0, 0.0]]))[0]
    assert pair[Pair.N_DIFF] == 2
    assert pair[Pair.MAX_ABS] == pair[Pair.RMS] == pair[Pair.KL] == pair[Pair.TV] == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n_vocab", [1, 7, 4097])
def test_rows_with_nan_or_infinity_have_no_numbers(n_vocab, bad):
    for where in {0, n_vocab // 2, n_vocab - 1}:
        a, b = draw(n_vocab, 3.0, 8), draw(n_vocab, 3.0, 9)
        a[1, where] = b[2, where] = bad
        summary = rows.summarise(a, [0, 0, 0])
        assert summary[:, Row.N_BAD].tolist() == [0, 1, 0]
        assert np.isnan(summary[1, 1:]).all()
        pairs = rows.compare(a, b)
        counts = [different_bits(a[i], b[i]) for i in range(3)]
        assert pairs[:, Pair.N_DIFF].tolist() == counts
        assert np.isnan(pairs[1:, 1:]).all()
        assert not np.isnan(pairs[0]).any()


def test_bad_entries_are_counted_and_nan_bits_compared():
    a = np.float32([[np.nan, 1, np.inf, -np.inf, 2]])
    b = a.copy()
    assert rows.summarise(a, [1])[0, Row.N_BAD] == 3
    assert rows.compare(a, b)[0, Pair.N_DIFF] == 0  # the same NaN, bit for bit
    b.view(np.uint32)[0, 0] ^= 1
    assert rows.compare(a, b)[0, Pair.N_DIFF] == 1


def test_the_largest_floats_overflow_nothing():
    top = np.finfo(np.float32).max
    row = np.float32([[top, -top, 0]])
    got = rows.summarise(row, [2])[0]
    assert got[Row.LOGSUMEXP] == float(top)
    assert got[Row.RANK] == 1
    pair = rows.compare(row, -row)[0]
    assert pair[Pair.MAX_ABS] == 2 * float(top)
    assert pair[Pair.KL] == pytest.approx(2 * float(top), rel=RTOL)
    assert pair[Pair.TV] == 1


def test_each_row_stands_alone():
    a, b = draw(4097, 3.0, 10, n_rows=5), draw(4097, 3.0, 11, n_rows=5)
    targets = [0, 4096, 7, 8, 100]
    alone = [rows.summarise(a[i : i + 1], targets[i : i + 1])[0] for i in range(5)]
    np.testing.assert_array_equal(rows.summarise(a, targets), alone)
    alone = [rows.compare(a[i : i + 1], b[i : i + 1])[0] for i in range(5)]
    np.testing.assert_array_equal(rows.compare(a, b), alone)
    every_second = a[::2]  # not contiguous
    np.testing.assert_array_equal(
        rows.summarise(every_second, targets[::2]), rows.summarise(a, targets)[::2]
    )


def test_no_rows():
    none = np.empty((0, 5), np.float32)
    assert rows.summarise(none, []).shape == (0, len(Row) - 1)
    assert rows.compare(none, none).shape == (0, len(Pair) - 1)


TWO = np.zeros((2, 5), np.float32)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: rows.summarise(TWO, [0, 5]), "targets = 5: is outside the row"),
        (lambda: rows.summarise(TWO, [-1, 0]), "targets = -1: is outside the row"),
        (lambda: rows.summarise(TWO, [0]), "targets has 1 entries for 2 rows"),
        (lambda: rows.summarise(TWO, [0, 2**32]), "targets = 4294967296"),
        (lambda: rows.summarise(TWO, [0, 1.0]), "targets are float64"),
        (lambda: rows.summarise(np.empty((2, 0), np.float32), [0, 0]), "n_vocab = 0"),
        (lambda: rows.summarise(TWO.astype(float), [0, 0]), "rows is float64"),
        (lambda: rows.summarise(TWO[0], [0]), r"rows is float32 of shape \(5,\)"),
        (lambda: rows.compare(TWO, TWO[:1]), r"\(2, 5\) and \(1, 5\)"),
        (lambda: rows.compare(TWO, TWO.astype(np.float16)), "b is float16"),
        *(
            (lambda t=t: rows.compare(TWO, TWO, t), f"temperature = {t}")
            for t in (0.0, -1.0, float("nan"), float("inf"))
        ),
    ],
)
def test_bad_arguments(call, said):
    with pytest.raises(ArgumentError, match=said):
        call()
