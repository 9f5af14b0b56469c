"""Files as Windows and macOS write them: every reader of what a user writes takes them, or says what to save."""

import unicodedata

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedsolve as fs
from fedsolve.cli.configuration.config import read_toml
from fedsolve.cli.prediction_files import read_inputs
from fedsolve.deploy.secure.keys import read_peers
from fedsolve.deploy.site_names import site_of

SCHEMA = """target = "übel"
classes = [0, 1]
[columns."größe"]
[columns.art]
categories = ["süß", "herb"]
fill = "herb"
"""
ROWS = """größe,art,übel,bemerkung
1.5,süß,1,"eine
Zeile"
2.5,,0,
"""
NUMBERS = "größe,alter\n1.5,2\n3,4\n"
PEERS = f'0 = "{"ab" * 32}"\n'

FORMS = {
    "as it is": lambda text: text.encode(),
    "byte order mark": lambda text: text.encode("utf-8-sig"),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "CR": lambda text: text.replace("\n", "\r").encode(),
    "decomposed": lambda text: unicodedata.normalize("NFD", text).encode(),
    "all of these": lambda text: unicodedata.normalize("NFD", text).replace("\n", "\r").encode("utf-8-sig"),
}


def read_site(path):
    """The rows of a table by a schema, both written alike."""
    table = path.with_name("table.csv")
    rows = table.read_bytes() if table.exists() else ROWS.encode()
    table.write_bytes(rows)
    x, y = fs.data.Schema.read(path).read_csv(table)
    return x.tolist(), y.tolist()


READERS = {
    "schema": ("schema.toml", SCHEMA, read_site),
    "inputs": ("new.csv", NUMBERS, lambda path: read_inputs(path, ["größe"]).tolist()),
    "decomposed option": (
        "new.csv",
        NUMBERS,
        lambda path: read_inputs(path, [unicodedata.normalize("NFD", "größe")]).tolist(),
    ),
    "configuration": ("run.toml", SCHEMA, read_toml),
    "peers": ("peers.toml", PEERS, read_peers),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_reader_takes_every_form(form, tmp_path):
    for name, text, read in READERS.values():
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        wanted = read(path)
        path.write_bytes(FORMS[form](text))
        assert read(path) == wanted
    assert read_site(tmp_path / "schema.toml") == ([[1.5, 1, 0], [2.5, 0, 1]], [1, 0])
    (tmp_path / "table.csv").write_bytes(FORMS[form](ROWS))
    assert read_site(tmp_path / "schema.toml") == ([[1.5, 1, 0], [2.5, 0, 1]], [1, 0])


def test_other_encodings_are_named(tmp_path):
    """A table may be in UTF-16 with a mark, as Excel saves "Unicode text"."""
    for encoding, said in {"utf-16": "in UTF-16", "utf-16-le": "in UTF-16", "cp1252": "not in UTF-8"}.items():
        for name, text, read in READERS.values():
            path = tmp_path / name
            if encoding == "utf-16" and path.suffix == ".csv":
                path.write_text(text, encoding=encoding)
                assert read(path) == [[1.5], [3]]
                continue
            path.write_text(f"größe = 1\n{text}", encoding=encoding)
            with pytest.raises(fs.InvalidInput, match=rf"{name} is {said}.*: save it in UTF-8") as refused:
                read(path)
            assert "\n" not in str(refused.value)
        (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
        (tmp_path / "table.csv").write_text(ROWS, encoding=encoding)
        if encoding == "utf-16":
            assert read_site(tmp_path / "schema.toml") == ([[1.5, 1, 0], [2.5, 0, 1]], [1, 0])
            continue
        with pytest.raises(
            fs.InvalidInput, match=rf"table.csv is {said}.*: save it in UTF-8, or set `encoding`"
        ):
            read_site(tmp_path / "schema.toml")
        (tmp_path / "table.csv").unlink()


def test_two_columns_that_accents_make_one_are_refused(tmp_path):
    first, second = "größe", unicodedata.normalize("NFD", "größe")
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    (tmp_path / "table.csv").write_text(ROWS.replace("bemerkung", second), encoding="utf-8")
    with pytest.raises(fs.InvalidInput, match=r"table\.csv has 2 columns called größe"):
        read_site(tmp_path / "schema.toml")
    (tmp_path / "new.csv").write_text(NUMBERS.replace("alter", second), encoding="utf-8")
    with pytest.raises(fs.InvalidInput, match=r"new\.csv has 2 columns called größe"):
        read_inputs(tmp_path / "new.csv", None)
    (tmp_path / "schema.toml").write_text(SCHEMA + f'[columns."{second}"]\n', encoding="utf-8")
    with pytest.raises(fs.InvalidInput, match=r"Cannot declare .* twice"):
        fs.data.Schema.read(tmp_path / "schema.toml")
    frame = pd.DataFrame(np.ones((2, 2)), columns=[first, second])
    with pytest.raises(fs.InvalidInput, match="has two columns 'größe'"):
        fs.FederatedData.from_clients([frame])


def test_frames_of_a_name_in_two_forms_are_one(tmp_path):
    one, other = (
        pd.DataFrame({unicodedata.normalize(form, name): [i, i] for i, name in enumerate(names)})
        for form, names in (("NFC", ("größe", "alter")), ("NFD", ("alter", "größe")))
    )
    data = fs.FederatedData.from_clients([one, other])
    assert np.asarray(data.client(1)).tolist() == [[1, 0], [1, 0]]
    path = tmp_path / "schema.toml"
    path.write_text('shape = [1]\nclasses = ["süß", "herb"]\n', encoding="utf-8")
    labels = [unicodedata.normalize("NFD", "süß"), "herb"]
    assert fs.data.Schema.read(path).check(np.ones((2, 1)), labels)[1].tolist() == [0, 1]
    assert site_of({"data": "/data/" + unicodedata.normalize("NFD", "Süd.csv")}) == "Süd"


@pytest.mark.parametrize("form", [list, np.array, lambda sites: np.array(sites, object)])
def test_an_id_in_two_forms_is_one_client(form, tmp_path):
    """In arrays, in partitions and in files."""
    sites = ["Köln", unicodedata.normalize("NFD", "Köln"), "Bonn", "Köln"]
    pq.write_table(pa.table({"site": sites, "x": np.arange(4.0)}), tmp_path / "t.parquet")
    of_file = fs.data.from_table(tmp_path / "t.parquet", client="site", x="x")
    of_array = fs.FederatedData.from_groups(np.arange(4.0), form(sites))
    for data in (of_file, of_array):
        assert {name: data.client(i).tolist() for i, name in enumerate(data.names)} == {
            "Bonn": [2.0],
            "Köln": [0.0, 1.0, 3.0],
        }
    assert [part.tolist() for part in fs.data.Natural()(form(sites))] == [[2], [0, 1, 3]]


def test_cells_as_data_frames_write_them(tmp_path):
    """A long note that nobody reads; 1.0 for class 1; all that pandas takes for missing, under `fill`."""
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    numbered = SCHEMA.replace('"süß", "herb"', "1, 2").replace('"herb"', "2")
    (tmp_path / "numbered.toml").write_text(numbered, encoding="utf-8")
    note = "x" * 200_000
    (tmp_path / "table.csv").write_text(
        f"größe,art,übel,bemerkung\n1,NULL,1.0,{note}\n2,nan,0.,\n3,NA,-0.0,\n", encoding="utf-8"
    )
    with pytest.raises(fs.InvalidInput, match=r"line 4: column übel = '-0\.0' is none of its classes 0, 1"):
        read_site(tmp_path / "schema.toml")
    (tmp_path / "table.csv").write_text(
        f"größe,art,übel,bemerkung\n1,NULL,1.0,{note}\n2,nan,0.,\n", encoding="utf-8"
    )
    assert read_site(tmp_path / "schema.toml") == ([[1, 0, 1], [2, 0, 1]], [1, 0])
    (tmp_path / "table.csv").write_text("größe,art,übel\n1,1.0,1.0\n2,,0\n3,2,0\n", encoding="utf-8")
    x, y = read_site(tmp_path / "numbered.toml")
    assert (x, y) == ([[1, 1, 0], [2, 0, 1], [3, 0, 1]], [1, 0, 0])
    for cell in ("1.5", "10", "1.00x", "1e0"):
        (tmp_path / "table.csv").write_text(f"größe,art,übel\n1,1,{cell}\n", encoding="utf-8")
        with pytest.raises(fs.InvalidInput, match="is none of its classes"):
            read_site(tmp_path / "numbered.toml")
    (tmp_path / "new.csv").write_text(f"größe,b\n1,{note}\n", encoding="utf-8")
    assert read_inputs(tmp_path / "new.csv", ["größe"]).tolist() == [[1]]
