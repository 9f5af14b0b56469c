"""Statistics of columns over clients: those of the pooled rows, from sums alone, and nothing of few rows."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedsolve as fs
from fedsolve.data.column_replies import (
    Categories,
    Describe,
    Measure,
    check_reply,
    join_bins,
    merge_bins,
    parse_columns,
    replies_to,
)
from fedsolve.data.column_statistics import (
    Minimum,
    check_summable,
    from_numbers,
    from_replies,
    from_sums,
    to_numbers,
)


def sites(seed=0):
    """Five sites: ages with gaps, a pressure far from 0, a text with gaps and a rare value, labels as numbers."""
    rng = np.random.default_rng(seed)
    return [
        {
            "age": np.where(rng.random(n) < 0.1, np.nan, rng.normal(50, 10, n)),
            "pressure": 1e9 + rng.normal(0, 1e-3, n),
            "balance": rng.normal(0, 1, n) * 10.0 ** rng.integers(-6, 6, n),
            "smoker": rng.choice(["no", "yes", "", "rarely"], n, p=[0.5, 0.38, 0.1, 0.02]),
            "ill": rng.integers(0, 2, n).astype("int8"),
        }
        for n in (40, 60, 90, 120, 300)
    ]


SITES = sites()
POOLED = pd.concat([pd.DataFrame(site) for site in SITES], ignore_index=True)
RANGES = {"age": (0, 120), "pressure": (1e9 - 0.01, 1e9 + 0.01), "balance": (-1e5, 1e5, 500)}
COLUMNS = {"age": None, "pressure": None, "balance": None, "smoker": None, "ill": "categories"}


def moments_are_those_of(column, rows):
    """Rows, mean and deviation of pooled rows, which NumPy computes in two passes."""
    assert (column.clients, column.rows) == (5, len(rows))
    assert column.mean == pytest.approx(rows.mean(), rel=1e-14)
    assert column.variance == pytest.approx(np.var(rows - rows.mean(), ddof=1), rel=1e-9)
    assert column.standard_deviation == column.variance**0.5


def quantiles_are_those_of(column, rows):
    """Each quantile lies within its bound, and each bound on the rows below an edge holds."""
    assert min(n for n in column.counts if n) >= 10
    below = [(rows < edge).sum() for edge in column.edges[:-1]] + [len(rows)]
    assert (np.array(column.least_below) <= below).all()
    assert (below <= np.array(column.most_below)).all()
    for probability in (0, 0.001, 0.1, 0.25, 0.5, 0.9, 1):
        value, error = column.quantile(probability)
        assert abs(value - np.quantile(rows, probability)) <= error
        low, high = column.quantile_bounds(probability)
        assert low <= np.quantile(rows, probability) <= high


def test_they_are_those_of_the_pooled_rows():
    """Means and variances to rounding, also where the mean is 10^12 deviations; the ends as far as ten rows spread."""
    found = fs.stats.describe(SITES, COLUMNS)
    assert list(found.columns) == list(COLUMNS)
    assert not found.unreported
    for name in ("age", "pressure", "balance"):
        rows, column = POOLED[name].dropna().to_numpy(), found[name]
        moments_are_those_of(column, rows)
        assert column.missing == POOLED[name].isna().sum()
        ordered = [np.sort(site[name][~np.isnan(site[name])]) for site in SITES]
        below, above = max(x[9] - x[0] for x in ordered), max(x[-1] - x[-10] for x in ordered)
        assert rows.min() - 2 * below < column.minimum <= rows.min()
        assert rows.max() <= column.maximum < rows.max() + 2 * above
        assert not {column.minimum, column.maximum} & set(rows.tolist())  # no row's own number
        with pytest.raises(fs.InvalidInput, match="give the column a range"):
            column.quantile(0.5)
    smoker = found["smoker"]
    assert smoker.counts == {n: (POOLED["smoker"] == n).sum() for n in ("no", "yes")}
    assert smoker.other == (POOLED["smoker"] == "rarely").sum()
    assert smoker.missing == (POOLED["smoker"] == "").sum()
    assert found["ill"].counts == {str(k): n for k, n in POOLED["ill"].value_counts().items()}


def summed(sites, columns, minimum=Minimum(3, 10)):  # noqa: B008
    """The statistics as secure sums give them."""
    requests = check_summable(parse_columns(columns))
    numbers = sum(to_numbers(requests, replies_to(requests, site, 1)) for site in sites)
    return from_sums(requests, from_numbers(requests, numbers, len(sites)), len(sites), minimum)


@pytest.mark.parametrize("collect", [fs.stats.describe, summed], ids=["read", "summed"])
def test_quantiles_within_a_range(collect):
    found = collect(SITES, RANGES)
    for name in RANGES:
        rows, column = POOLED[name].dropna().to_numpy(), found[name]
        moments_are_those_of(column, rows)
        quantiles_are_those_of(column, rows)
        assert column.minimum <= rows.min() <= rows.max() <= column.maximum
    error = found["age"].quantile(0.5).error
    assert error < (1.2 if collect is summed else 5)  # of one bin, or of several that sites have joined
    exact = collect(SITES, RANGES | {"age": (0, 120, 400)}, **(ONE if collect is summed else {"min_rows": 1}))
    assert exact["age"].quantile(0.5).error <= 0.3
    ages = POOLED["age"].dropna()
    inside = np.histogram(ages, np.linspace(0, 120, 401))[0]
    held = np.flatnonzero(inside)
    assert exact["age"].counts == tuple(inside[held[0] : held[-1] + 1])


ONE = {"minimum": Minimum(3, 1)}


def test_a_sum_of_numbers_in_a_small_part_of_a_range():
    """A deviation of a millionth of the range is right to seven digits, as 60 bits of its square allow."""
    sites = [{"x": 0.3 + 1e-6 * np.random.default_rng(i).normal(size=50)} for i in range(4)]
    rows = np.concatenate([site["x"] for site in sites])
    found = summed(sites, {"x": (0, 1)})["x"]
    assert found.mean == pytest.approx(rows.mean(), rel=1e-15)
    assert found.variance == pytest.approx(np.var(rows - rows.mean(), ddof=1), rel=1e-7)
    far = [{"x": np.append(site["x"], 2.0)} for site in sites]  # beyond the range, and few
    pooled = np.concatenate([site["x"] for site in far])
    found = summed(far, {"x": (0, 1)}, Minimum(3, 4))["x"]
    assert found.variance == pytest.approx(pooled.var(ddof=1), rel=1e-9)
    assert found.maximum == np.inf
    with pytest.raises(fs.InvalidInput, match="column x has numbers far beyond the range"):
        summed([{"x": np.full(20, 5.0)}] * 3, {"x": (0, 1)})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("age=0:1, x", "column x: secure sums are of numbers within a range: give it, such as x=0:120"),
        ("x=categories", "column x: categories have names, which cannot be added up"),
        ("", "sums are of columns that are named"),
    ],
)
def test_what_cannot_be_added_up(columns, words):
    with pytest.raises(fs.InvalidInput, match=words):
        check_summable(parse_columns(columns))


def test_no_client_tells_of_a_bin_with_few_rows():
    """Each bin that it tells of has no rows or enough; the rows are all there, and where they are by its edges."""
    rows = np.append(np.random.default_rng(1).exponential(1.0, 200), 300.0)
    for request in (Measure(0.5, 3.0, 50), Measure(0.0, 400.0, 400)):
        reply = join_bins(replies_to({"x": request}, {"x": rows}, 10), 10)["x"]
        check_reply(request, reply)
        assert reply.ends == ()
        assert all(n in (-1, 0) or n >= 10 for n in reply.counts)
        assert reply.counts[0] >= 0
        assert -1 in reply.counts
        starts = [i for i, n in enumerate(reply.counts) if n >= 0]
        told = np.histogram(rows, [*request.edges[starts], np.inf])[0]
        assert told.tolist() == [n for n in reply.counts if n >= 0]
    few = fs.stats.describe([{"x": rows}] * 3, "x=0:3")["x"]
    assert few.maximum == np.inf
    exact = fs.stats.describe([{"x": rows}] * 3, "x=0:3", min_rows=1)["x"]
    assert exact.least_below == exact.most_below
    for probability in (0.01, 0.3, 0.5, 0.8):
        coarse, fine = few.quantile(probability), exact.quantile(probability)
        assert abs(coarse.value - fine.value) <= coarse.error + fine.error
        assert coarse.error < 0.35


def test_a_range_that_is_too_small():
    """Rows outside it are counted, and how far they are is not known: a quantile there lies below or above its ends."""
    found = fs.stats.describe(SITES, "age=40:60, ill = categories", min_rows=1)
    age, rows = found["age"], POOLED["age"].dropna().to_numpy()
    assert (age.minimum, age.maximum) == (-np.inf, np.inf)
    inside = np.histogram(rows, np.linspace(40, 60, 101))[0]
    assert age.counts == ((rows < 40).sum(), *inside, (rows > 60).sum())
    assert age.quantile(0) == (40.0, np.inf)
    assert (age.quantile_bounds(0), age.quantile_bounds(1)) == ((-np.inf, 40), (60, np.inf))
    assert age.quantile(0.5).error <= 0.21
    assert age.variance == pytest.approx(rows.var(ddof=1), rel=1e-12)
    assert list(found.columns) == ["age", "ill"]


@pytest.mark.parametrize(
    ("rows", "ends"),
    [
        (np.arange(60.0), (0.0, 64.0)),  # ten rows spread over 9: steps of 16, of whole numbers, too
        (np.array([*range(59), 1e6]), (0.0, 2.0**20)),  # an outlier to a factor of 2
        (np.array([-1e6, *range(59)]), (-(2.0**20), 64.0)),
        (np.array([5.0] * 30 + [7.0] * 30), (5.0, 7.0)),  # of thirty rows each
    ],
)
def test_no_end_is_the_number_of_fewer_rows_than_the_minimum(rows, ends):
    """A site tells an end as coarsely as its ten nearest rows spread."""
    column = fs.stats.describe([{"x": rows}] * 3, min_rows=10)["x"]
    assert (column.minimum, column.maximum) == ends


@pytest.mark.parametrize(
    "rows",
    [np.zeros(12), np.full(12, -7.5), np.arange(12.0), np.array([-1e-30, 1.5e19] * 6), np.full(12, 0.1)],
)
def test_rows_of_few_values(rows):
    found = fs.stats.describe([{"x": rows}] * 3, min_rows=1)
    column = found["x"]
    assert not found.notes
    assert (column.minimum, column.maximum) == (rows.min(), rows.max())  # single rows may be told
    assert column.variance == pytest.approx(np.tile(rows, 3).var(ddof=1), rel=1e-12, abs=1e-30)


def test_nothing_of_few_rows_or_clients():
    """A column of two clients; one with enough clients and too few rows each; a category that one site has rarely."""
    few = [dict(site) for site in SITES]
    for site in few[2:]:
        del site["age"]
    few[0]["pressure"] = few[0]["pressure"][:9]
    found = fs.stats.describe(few, COLUMNS)
    assert found.unreported == {
        "age": "it has 2 clients, and 3 are the minimum (min_clients): 2 would report it"
    }
    assert found["pressure"].clients == 4
    assert "client 0, column pressure: it has fewer than 10 rows" in found.notes
    assert "client 2, client 3, client 4, column age: unknown column 'age'" in " ".join(found.notes)
    with pytest.raises(fs.InvalidInput, match="column age is not reported: it has 2 clients"):
        found["age"]
    asked, minimum = (
        {"x": Describe()},
        Minimum(3, 10),
    )  # of a server with a larger minimum than its clients have
    replies = {i: replies_to(asked, {"x": np.arange(3.0)}, 1) for i in range(3)}
    few = {"x": "it has 9 rows, and 10 are the minimum (min_rows)"}
    assert from_replies(asked, replies, minimum).unreported == few
    with_range = [{"x": np.arange(3.0)}] * 3
    assert summed(with_range, "x=0:9").unreported == few
    assert summed(with_range[:2], "x=0:9").unreported["x"].startswith("it has 2 clients, and 3")
    replies = {i: replies_to(asked, {"x": ["a"] * 5 + ["b"]}, 1) for i in range(3)}
    found = from_replies(asked, replies, minimum)["x"]
    assert (found.counts, found.other) == ({"a": 15}, 3)
    rare = [{"x": ["a"] * 20 + ["b"] * n} for n in (9, 9, 12)]
    assert fs.stats.describe(rare)["x"].counts == {"a": 60, "b": 12}
    assert fs.stats.describe(rare)["x"].other == 18


def test_sites_that_differ_in_kind():
    """Categories that are numbers at one site and text at another are counted where they are asked for."""
    mixed = [
        {"x": np.repeat([1, 2], 20)},
        {"x": ["1"] * 15 + ["often"] * 15},
        {"x": pd.array([2, None] * 15, dtype="Int64")},
    ]
    assert re.fullmatch(
        "it is text at client 1 and numbers at client 0: .*, or ask for x=categories or C\\(x\\)",
        fs.stats.describe(mixed).unreported["x"],
    )
    found = fs.stats.describe(mixed, "x=categories")["x"]
    assert found.counts == {"1": 35, "2": 35, "often": 15}
    assert found.missing == 15
    assert fs.stats.describe(mixed, "x=0:3").notes == (
        "client 1, column x: it has categories, and a range was given for it",
    )


def test_federated_data():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 40, 2)).astype("float32"), rng.integers(0, 3, (3, 40))
    data = fs.FederatedData.from_clients([fs.Examples(a, b) for a, b in zip(x, y, strict=True)])
    found = fs.stats.describe(data)
    assert list(found.columns) == ["x.0", "x.1", "y"]
    assert found["x.1"].mean == pytest.approx(x[..., 1].mean(dtype=float), rel=1e-12)
    with pytest.raises(fs.InvalidInput, match=r"field value has shape \(5, 2, 2\)"):
        fs.stats.describe(fs.FederatedData.from_clients([np.zeros((5, 2, 2))]))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("age=60:40", "age = (60.0, 40.0) must be a range"),
        ("age=old", "'age=old' must be NAME, NAME=LOW:HIGH, NAME=LOW:HIGH:BINS or NAME=categories"),
        ({"age": "often"}, "must be a range (low, high) with low < high, or 'categories'"),
        ({"age": (0, np.nan)}, "must be a range"),
        ("age=0:120:0", "bins of age = 0 must be an integer of at least 1"),
        ("age=0:120:5000", "bins of age = 5000: give at most 4,096"),
        ({"age": (0, 120, 5, 5)}, "must be a range"),
        ([3], "3 is no name of a column"),
        (3, "columns = 3 must be names of columns"),
    ],
)
def test_what_cannot_be_asked(columns, words):
    with pytest.raises(fs.InvalidInput) as refused:
        fs.stats.describe(SITES, columns)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (np.full(20, np.inf), "a number of 2^64 or more, or one that is infinite"),
        (np.zeros((20, 2)), "it has shape (20, 2)"),
        (np.zeros(20, complex), "it is of type complex128"),
        ([b"a"] * 20, "give numbers or text"),
        ([f"{i // 10}x" for i in range(1010)], "101 categories, more than 100"),
    ],
)
def test_what_a_client_does_not_reply_about(column, words):
    found = fs.stats.describe([{"x": column}] * 3)
    assert found.unreported == {"x": "it has 0 clients, and 3 are the minimum (min_clients)"}
    assert words in found.notes[0]


MEASURE, DESCRIBE = Measure(0.0, 10.0, 5), Describe()
ROWS = np.array([1.0, 3.0, 3.5, 9.0, 12.0])
GOOD = replies_to({"x": MEASURE}, {"x": ROWS}, 1)["x"]
ENDS = replies_to({"x": DESCRIBE}, {"x": ROWS}, 1)["x"]
TEXT = Categories(5, 0, ("a",), (5,))


@pytest.mark.parametrize(
    ("request_", "reply", "words"),
    [
        (MEASURE, replace(GOOD, rows=6), "its counts add up to 5, and it has 6 rows"),
        (MEASURE, replace(GOOD, rows=True), "its rows are True, not an integer"),
        (MEASURE, replace(GOOD, missing=-1), "its missing are -1"),
        (MEASURE, replace(GOOD, counts=(-1, 2, 2, 0, 0, 1, 1)), "its counts are -1"),
        (MEASURE, replace(GOOD, counts=(0, 4, -1, -2, 0, 0, 3)), "its counts are -2"),
        (MEASURE, replace(GOOD, counts=GOOD.counts[:-1]), "it has no 7 counts"),
        (MEASURE, replace(GOOD, mean=np.nan), "its mean is nan"),
        (MEASURE, replace(GOOD, mean=-8.0), "its mean is -8, and its numbers lie from 0 to inf"),
        (MEASURE, replace(GOOD, rest=0.1), "its mean is 5.7"),
        (MEASURE, replace(GOOD, squares=np.inf), "its sum of squares is inf"),
        (MEASURE, replace(GOOD, squares=-1.0), "its sum of squares is -1"),
        (
            MEASURE,
            replace(GOOD, counts=(0, 5, -1, 0, 0, 0, 0)),
            "its mean is 5.7, and its numbers lie from 0 to 4",
        ),
        (DESCRIBE, replace(ENDS, mean=1e6), "its mean is 1e+06"),
        (DESCRIBE, replace(ENDS, squares=5 * 6.3 * 4.7 * 1.01), "its sum of squares is 149.5"),
        (DESCRIBE, replace(ENDS, ends=(3.0, 1.0)), "its ends are (3.0, 1.0), not two numbers in order"),
        (DESCRIBE, replace(ENDS, ends=(1.0, np.inf)), "its ends are (1.0, inf)"),
        (DESCRIBE, replace(ENDS, ends=()), "its ends are ()"),
        (Describe(categorical=True), ENDS, "it replies Numbers to Describe"),
        (MEASURE, TEXT, "it replies Categories to Measure"),
        (DESCRIBE, replace(TEXT, names=("a", "a")), "not up to 100 different texts"),
        (DESCRIBE, replace(TEXT, names=("a\n",)), "no printable text of 1 to 64 characters"),
        (DESCRIBE, replace(TEXT, counts=(6,)), "its counts are -1"),
        (DESCRIBE, replace(TEXT, counts=(0,)), "it has not a count of at least 1 for each category"),
        (DESCRIBE, replace(TEXT, counts=(2, 2)), "it has not a count of at least 1 for each category"),
    ],
)
def test_a_reply_that_cannot_be_believed(request_, reply, words):
    with pytest.raises(fs.InvalidInput) as refused:
        check_reply(request_, reply)
    assert words in str(refused.value)


def test_one_that_cannot_be_believed_does_not_count():
    """What is reported is of the others, with a note."""
    asked = {"age": Describe()}
    replies = {i: replies_to(asked, site, 10) for i, site in enumerate(SITES)}
    replies[4] = {"age": replace(replies[4]["age"], missing=2.5)}
    found = from_replies(asked, replies, Minimum(3, 10))
    others = np.concatenate([site["age"] for site in SITES[:4]])
    assert found["age"].mean == pytest.approx(np.nanmean(others), rel=1e-13)
    assert found["age"].variance == pytest.approx(np.nanvar(others, ddof=1), rel=1e-13)
    assert found.notes == (
        "client 4, column age: its missing are 2.5, not an integer from 0 to 1,099,511,627,776",
    )


def test_merged_bins_have_enough_rows():
    rng = np.random.default_rng(3)
    for _ in range(50):
        counts = rng.poisson(rng.choice([0.3, 2, 20]), 30)
        counts[rng.integers(30)] += 5
        edges, merged = merge_bins(np.arange(31.0), counts, 5)
        assert sum(merged) == counts.sum()
        assert all(n == 0 or n >= 5 for n in merged)
        np.testing.assert_array_equal(np.histogram(np.repeat(np.arange(30) + 0.5, counts), edges)[0], merged)


def test_a_schema_from_the_statistics(tmp_path):
    """The sections are a schema's, and give inputs of mean 0 and deviation 1; a column of two numbers has them."""
    head = 'target = "ill"\nclasses = [0, 1]\n'
    (tmp_path / "schema.toml").write_text(head + "[columns.age]\n[columns.smoker]\n")
    schema, files = fs.data.Schema.read(tmp_path / "schema.toml"), []
    for i, site in enumerate(SITES):
        files.append(tmp_path / f"{i}.csv")
        pd.DataFrame(site).to_csv(files[-1], index=False)
    found = fs.stats.describe([schema.raw_columns(file) for file in files])
    assert set(found.columns) == {"age", "smoker", "ill"}
    assert found["age"].missing == POOLED["age"].isna().sum()
    assert found["ill"].counts["1"] == POOLED["ill"].sum()
    del found.columns["ill"]
    text = found.schema()
    assert '[columns.smoker]\ncategories = ["no", "yes"]\n' in text
    (tmp_path / "schema.toml").write_text(
        head + text.replace("# fill", "fill")  # the mean, and the most frequent category
    )
    schema = fs.data.Schema.read(tmp_path / "schema.toml")
    with pytest.raises(fs.InvalidInput, match="rarely"):
        schema.read_csv(files[-1])
    file = tmp_path / "bad.csv"
    file.write_text("age,smoker,ill\n" + "40,no,1\n" * 20 + "4O,no,1\n")
    with pytest.raises(fs.InvalidInput, match=r"bad.csv, line 22: column age = '4O' is not a finite number"):
        schema.raw_columns(file)["age"]
    assert schema.raw_columns(file)["smoker"] == ["no"] * 21


@pytest.mark.parametrize("name", [3, None, ("a", "b")])
def test_a_columns_name_is_text(name):
    """As a data frame without names has none."""
    with pytest.raises(fs.InvalidInput, match="where a name stands: give names as text"):
        fs.stats.describe([{name: np.arange(20.0)}] * 3, "a")
