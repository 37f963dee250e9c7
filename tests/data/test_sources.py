"""Official formats are read as they are; what is wrong with a file is a sentence that names it."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import pickle
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from episode import EpisodeError
from episode.data.images import ImageFiles, Images, decode
from episode.data.progress import show_progress
from episode.data.sources import GLOVE, IMAGENET, SENTIMENT140, SNLI, SOURCES
from episode.data.sources.archives import unpacked
from episode.data.sources.cifar10 import read_batch
from episode.data.sources.fetch import MANIFEST, fetch, verify_checksums
from episode.data.sources.glove import default_vectors
from episode.data.storage import data_folder, prepare_arrays
from episode.data.texts import Corpus, Texts, tokeniser
from episode.data.vocabulary import words_with_vectors
from episode.data.word_vectors import describe_vectors, read_vectors
from official import write_cifar10, write_imagenet, write_sentiment140, write_snli, write_vectors


def test_snli_is_read_without_its_undecided_pairs(tmp_path: Path) -> None:
    rows = SNLI.rows(write_snli(tmp_path / "download" / "snli_1.0").parent)
    pairs = list(rows["train"])
    assert len(pairs) == 239
    assert {pair.label for pair in pairs} == {0, 1, 2}


def test_tweets_are_latin_1_and_without_entities(tmp_path: Path) -> None:
    rows = SENTIMENT140.rows(write_sentiment140(tmp_path))
    tweets = list(rows["train"])
    assert tweets[0].texts[0].endswith('. caf\xe9 "x"')
    assert [t.label for t in rows["manual"]] == [1, 0]


def test_cifar_batches_of_python_2_and_3_are_read(tmp_path: Path) -> None:
    images, labels = read_batch(write_cifar10(tmp_path) / "data_batch_1")
    assert images.shape == (40, 3, 32, 32)
    assert labels.tolist() == [k % 10 for k in range(40)]
    assert images[3, 0, 0, 5] == 75


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "mark"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str, str]]:
            return open, (str(mark), "w")

    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}, protocol=protocol))
    with pytest.raises(EpisodeError, match="more than arrays and plain containers"):
        read_batch(path)
    assert not mark.exists()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _edit(row: int, **changes: object) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        lines = path.read_text().splitlines()
        values = json.loads(lines[row]) | changes
        lines[row] = json.dumps({k: v for k, v in values.items() if v != "gone"})
        path.write_text("\n".join(lines) + "\n")

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "SNLI needs snli_1.0_train.jsonl"),
        (_cut, r"Line 240 of .*train.jsonl is not a JSON object"),
        (lambda p: p.write_bytes(b""), "train.jsonl is empty"),
        (lambda p: p.write_bytes(b'{"gold_label": "\xff"}\n'), "Line 1 of .* is not UTF-8"),
        (_edit(4, gold_label="maybe"), "Line 5 of .* has the label 'maybe'"),
        (_edit(4, gold_label="gone"), "Line 5 of .* must have gold_label"),
        (_edit(2, sentence1=3), "Line 3 of .* has a sentence that is not text"),
    ],
)
def test_bad_snli_names_file_and_line(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    folder = write_snli(tmp_path / "snli")
    damage(folder / "snli_1.0_train.jsonl")
    with pytest.raises(EpisodeError, match=message):
        SNLI.check(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'"3","1","d","q","u","t"\n', "Row 1 of .* has the polarity '3'"),
        (b'"4","1","d","q","u","t"\n"4","1","d"\n', "Row 2 of .* has 3 columns"),
        (b'"4","1","d","q","u","t"\n"4","1","d","q","u","un', "Row 2 of .* is not CSV"),
        (b"", "is empty"),
    ],
)
def test_bad_tweets_name_file_and_row(tmp_path: Path, content: bytes, message: str) -> None:
    (write_sentiment140(tmp_path) / SENTIMENT140.file_names["train"]).write_bytes(content)
    with pytest.raises(EpisodeError, match=message):
        SENTIMENT140.check(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds no dict"),
        ({"labels": [1]}, "has no data of bytes"),
        ({"data": np.zeros((2, 9), np.uint8), "labels": [1, 1]}, "images of 9 bytes"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, "one label for each of its 2"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 12]}, "Image 1 of .* label 12"),
        ({"data": np.zeros((2, 3072), np.float32), "labels": [1, 1]}, "more than arrays"),
    ],
)
def test_a_pickle_that_is_not_what_it_claims_is_named(
    tmp_path: Path, content: object, message: str
) -> None:
    (tmp_path / "batch").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(EpisodeError, match=message):
        read_batch(tmp_path / "batch")


def test_a_pickle_that_is_cut_off_is_named(tmp_path: Path) -> None:
    path = write_cifar10(tmp_path) / "test_batch"
    _cut(path)
    with pytest.raises(EpisodeError, match="test_batch is not a whole pickle"):
        read_batch(path)


def test_images_that_cannot_be_read_or_have_no_training_class_are_named(tmp_path: Path) -> None:
    folder = write_imagenet(tmp_path / "images")
    assert IMAGENET.check(folder)["train"] == {"n01": 12, "n02": 12, "n03": 12}
    broken = folder / "train" / "n02" / "n02_3.JPEG"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EpisodeError, match=r"image .*n02_3.JPEG cannot be read"):
        IMAGENET.check(folder)
    broken.write_bytes(b"no image")
    with pytest.raises(EpisodeError, match=r"n02_3.JPEG cannot be read \(it is no image"):
        IMAGENET.check(folder)
    broken.write_bytes(whole)
    (folder / "val" / "n02").rename(folder / "val" / "n09")
    with pytest.raises(EpisodeError, match="label that occurs in test only"):
        IMAGENET.rows(folder)


def test_vectors_are_cut_to_what_is_wanted_from_text_gz_and_zip(tmp_path: Path) -> None:
    gz = write_vectors(tmp_path / "v.txt.gz", dimension=5)
    found = read_vectors(gz, {"good", "dog", "unheard"})
    assert set(found.rows) == {"good", "dog"}
    assert found.vectors.shape == (2, 5)
    text = "a 1 2\n. . 3 4\nb 5 6\n"
    with zipfile.ZipFile(tmp_path / "v.zip", "w") as zipped:
        zipped.writestr("v.2d.txt", text)
    found = read_vectors(tmp_path / "v.zip", {"b", ". ."})
    assert found.vectors[found.rows[". ."]].tolist() == [3, 4]
    assert found.vectors[found.rows["b"]].tolist() == [5, 6]
    assert found.first.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_equal_vectors_have_one_checksum_however_they_are_packed(tmp_path: Path) -> None:
    gz, plain = write_vectors(tmp_path / "v.txt.gz", dimension=5), tmp_path / "v.txt"
    plain.write_bytes(gzip.decompress(gz.read_bytes()))
    assert describe_vectors(gz) == describe_vectors(plain)
    assert describe_vectors(gz)["checksum"] == read_vectors(gz, {"good"}).checksum
    assert describe_vectors(gz)["size"] == 5
    plain.write_text(plain.read_text().replace("1", "2", 1))
    assert describe_vectors(gz) != describe_vectors(plain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 1 2 3\nb 1 2\n", "Line 2 of the vectors .* has 2 numbers, but the first line has 3"),
        ("a 1 2\nb 1 2 3\n", "Line 2 of the vectors .* has 3 numbers, but the first line has 2"),
        ("a 1 2\nb 1 x\n", "Line 2 of the vectors .* not a number"),
        ("a 1 2\nb 1 inf\n", "Line 2 of the vectors .* not finite"),
        ("a 1 2 3\nb 1  3\n", "Line 2 of the vectors .* has 2 numbers, but the first line has 3"),
        ("", "are empty"),
        ("c 1 2\n", "None of the words has a vector"),
    ],
)
def test_bad_vectors_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(EpisodeError, match=message):
        read_vectors(tmp_path / "v.txt", {"a", "b"})
    if "None of the words" not in message:
        with pytest.raises(EpisodeError, match=message):
            GLOVE.check(tmp_path)


def test_an_archive_of_several_files_of_vectors_is_fetched_and_one_of_them_named(
    tmp_path: Path,
) -> None:
    archive = tmp_path / "glove.6B.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("glove.6B.2d.txt", "a 1 2\nb 3 4\n\n")
        zipped.writestr("glove.6B.3d.txt", "a 1 2 3\nb 4 5 6\n")
    folder = fetch("glove-6b", str(archive))
    assert SOURCES["glove-6b"].check(folder) == {"glove.6B.zip": {"words": 4}}
    assert default_vectors() == folder / "glove.6B.zip"
    with pytest.raises(EpisodeError, match=r"name one, as .*glove.6B.zip/glove.6B.2d.txt"):
        read_vectors(default_vectors(), {"a"})
    assert read_vectors(default_vectors() / "glove.6B.3d.txt", {"b"}).vectors.tolist() == [
        [4, 5, 6]
    ]


def test_archives_that_cannot_be_unpacked_are_named(tmp_path: Path) -> None:
    (tmp_path / "glove_bad.zip").write_bytes(b"PK nonsense")
    named = f"The vectors {re.escape(str(tmp_path))}/glove_bad.zip are damaged or cut off"
    with pytest.raises(EpisodeError, match=named):
        fetch("glove", str(tmp_path / "glove_bad.zip"))
    locked = tmp_path / "snli.zip"
    with zipfile.ZipFile(locked, "w") as zipped:
        zipped.writestr("snli_1.0_train.jsonl", "{}")
    content = bytearray(locked.read_bytes())
    content[content.index(b"PK\x03\x04") + 6] |= 1  # the bit that says: encrypted
    content[content.index(b"PK\x01\x02") + 8] |= 1
    locked.write_bytes(content)
    with pytest.raises(EpisodeError, match=r"snli.zip cannot be unpacked \(File .* is encrypted"):
        fetch("snli", str(locked))


def test_a_label_that_only_test_has_and_a_file_without_labels_are_named(tmp_path: Path) -> None:
    folder = write_snli(tmp_path / "snli")
    train, test = folder / "snli_1.0_train.jsonl", folder / "snli_1.0_test.jsonl"
    whole = train.read_text()
    train.write_text(whole.replace('"neutral"', '"entailment"'))
    with pytest.raises(EpisodeError, match=r"Line 2 of .*dev.jsonl has the label 'neutral', which"):
        SNLI.check(folder)
    train.write_text(whole)
    test.write_text(re.sub(r'"gold_label": "\w+"', '"gold_label": "-"', test.read_text()))
    with pytest.raises(EpisodeError, match="has no test row with a label"):
        SNLI.check(folder)


def test_vectors_that_are_cut_off_or_not_utf_8_are_named(tmp_path: Path) -> None:
    gz = write_vectors(tmp_path / "v.txt.gz")
    gz.write_bytes(gz.read_bytes()[:-30])
    with pytest.raises(EpisodeError, match="damaged or cut off after line"):
        read_vectors(gz, {"good"})
    (tmp_path / "v.txt").write_bytes(b"a 1 2\n\xff\xfe 1 2\n")
    with pytest.raises(EpisodeError, match="not UTF-8"):
        read_vectors(tmp_path / "v.txt", {"a"})


WORDS = st.sampled_from(
    ["a", "Dog", "cannot", "gonna", "3", "can't", "U.S.", "end.", "x,y", '"', "$5", "wanna", "--"]
)


@pytest.mark.slow
@given(st.lists(WORDS, min_size=1, max_size=8), st.sampled_from([" ", ", ", "  "]), st.booleans())
def test_the_short_way_to_tokens_is_nltks(words: list[str], between: str, stop: bool) -> None:
    from nltk.tokenize import TreebankWordTokenizer

    text = between.join(words) + ("." if stop else "")
    assert tokeniser()(text) == TreebankWordTokenizer().tokenize(text)


def test_a_corpus_drops_words_without_a_vector_and_batches_are_cut(tmp_path: Path) -> None:
    vectors = write_vectors(tmp_path / "v.txt.gz")

    def build(folder: Path) -> dict[str, object]:
        corpus = Corpus(columns=2)
        corpus.add("train", ("Good zzz day", "the"), 1)
        corpus.add("train", ("sad", "zzz"), 0)
        return corpus.write(folder, words_with_vectors(corpus.words, vectors, "drop"))

    ready = prepare_arrays("toy", {"k": 1}, build)
    assert ready.info["token_coverage"] == pytest.approx(12 / 14)
    texts = Texts.from_prepared(ready, "train", 2)
    batch = texts.gather(torch.tensor([1, 0]))
    assert batch.lengths.tolist() == [3, 4, 2, 3]
    assert batch.tokens.shape == (4, 4)
    assert batch.labels.tolist() == [0, 1]
    found = read_vectors(vectors, {"<s>", "good", "day", "</s>"})
    rows = [found.rows[w] for w in ("<s>", "good", "day", "</s>")]
    expected = torch.from_numpy(found.vectors[rows])
    assert torch.equal(ready["vectors"][batch.tokens[1].long()], expected)


def test_a_batch_holds_the_texts_asked_for_each_padded_with_its_last_word() -> None:
    texts = [[[7, 8, 9], [1, 2]], [[5], [6, 4, 3, 2]], [[2, 2], [9]]]  # example, column
    columns = [
        (
            torch.tensor([word for text in column for word in text]),
            torch.tensor([0, *itertools.accumulate(len(text) for text in column)]),
        )
        for column in zip(*texts, strict=True)
    ]
    chosen = Texts(columns, torch.tensor([10, 11, 12])).select(torch.tensor([2, 0, 1]))
    assert (len(chosen), chosen.labels.tolist()) == (3, [12, 10, 11])
    batch = chosen.select(torch.tensor([2, 0])).gather(torch.tensor([1, 0]))  # examples 2 and 1
    assert batch.labels.tolist() == [12, 11]
    assert batch.lengths.tolist() == [2, 1, 1, 4]
    assert batch.tokens.tolist() == [[2, 2, 2, 2], [5, 5, 5, 5], [9, 9, 9, 9], [6, 4, 3, 2]]


def test_prepared_arrays_are_made_once_and_never_half(tmp_path: Path) -> None:
    calls = []

    def fails(folder: Path) -> dict[str, object]:
        np.save(folder / "x", np.arange(3))
        raise EpisodeError("Line 3 is wrong.")

    def works(folder: Path) -> dict[str, object]:
        calls.append(folder)
        np.save(folder / "x", np.arange(3))
        return {}

    with pytest.raises(EpisodeError, match="Line 3"):
        prepare_arrays("toy", {}, fails)
    assert not [p for p in (data_folder() / "prepared").iterdir() if p.is_dir()]
    assert prepare_arrays("toy", {}, works)["x"].tolist() == [0, 1, 2]
    assert prepare_arrays("toy", {}, works)["x"].tolist() == [0, 1, 2]
    assert len(calls) == 1
    prepare_arrays("toy", {"other": 1}, works)
    assert len(calls) == 2


def test_archives_are_unpacked_once_and_never_outside_their_folder(tmp_path: Path) -> None:
    write_snli(tmp_path / "snli_1.0")
    good = tmp_path / "snli.tar.gz"
    with tarfile.open(good, "w:gz") as tarred:
        tarred.add(tmp_path / "snli_1.0", "snli_1.0")
    assert len(SNLI.files(SNLI.locate(str(good)))) == 3
    assert unpacked(good) == unpacked(good)
    evil = tmp_path / "evil.tar"
    with tarfile.open(evil, "w") as tarred:
        member = tarfile.TarInfo("../outside")
        member.size = 2
        tarred.addfile(member, io.BytesIO(b"hi"))
    evil_zip = tmp_path / "evil.zip"
    with zipfile.ZipFile(evil_zip, "w") as zipped:
        zipped.writestr("../outside", "hi")
    link = tmp_path / "link.tar"
    with tarfile.open(link, "w") as tarred:
        member = tarfile.TarInfo("passwords")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tarred.addfile(member)
    for archive in (evil, evil_zip, link):
        with pytest.raises(
            EpisodeError, match=r"outside of its folder|neither a file nor a folder"
        ):
            unpacked(archive)
    assert not list(tmp_path.rglob("outside"))
    good.write_bytes(good.read_bytes()[:200])
    with pytest.raises(EpisodeError, match="damaged or cut off"):
        unpacked(good)


@pytest.mark.parametrize("name", ["snli", "sentiment140", "cifar10", "imagenet"])
def test_a_dataset_is_fetched_from_official_files_whole_or_not_at_all(
    tmp_path: Path, name: str
) -> None:
    write = {
        "snli": write_snli,
        "sentiment140": write_sentiment140,
        "cifar10": write_cifar10,
        "imagenet": write_imagenet,
    }[name]
    folder = write(tmp_path / "official")
    got = fetch(name, str(folder))
    assert SOURCES[name].check(got) == SOURCES[name].check(folder)
    assert "as they were when fetched" in verify_checksums(SOURCES[name], got)[0]
    file = next(p for p in sorted(got.rglob("*")) if p.is_file() and p.name != MANIFEST)
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(EpisodeError, match="is not what was fetched"):
        verify_checksums(SOURCES[name], got)


def test_a_broken_dataset_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = write_snli(tmp_path / "official")
    _cut(folder / "snli_1.0_test.jsonl")
    named = re.escape(str(folder / "snli_1.0_test.jsonl"))  # and not our copy, which is gone
    with pytest.raises(EpisodeError, match=f"{named} is not a JSON object"):
        fetch("snli", str(folder))
    assert not [p for p in (data_folder() / "datasets").iterdir() if p.is_dir()]


def test_rows_of_the_hub_become_official_files(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for split in ("train", "validation", "test"):
        rows = {"premise": ["A dog.", "Hm"], "hypothesis": ["An animal."] * 2, "label": [0, -1]}
        table = datasets.Dataset.from_dict(rows)
        (tmp_path / "hub").mkdir(exist_ok=True)
        table.to_parquet(str(tmp_path / "hub" / f"{split}-00000-of-00001.parquet"))
    folder = fetch("snli", str(tmp_path / "hub"))
    assert SNLI.check(folder)["train"] == {
        "entailment": 1, "neutral": 0, "contradiction": 0,
    }  # fmt: skip
    with pytest.raises(EpisodeError, match=r"There is no folder or archive .*none: give one"):
        fetch("cifar10", str(tmp_path / "none"))
    assert not (data_folder() / "downloads" / "snli").exists()  # kept once, in the official layout


@pytest.mark.parametrize("kind", ["snli.zip", "snli.tar.gz"])
def test_long_work_says_how_far_it_has_come(tmp_path: Path, kind: str) -> None:
    folder = write_snli(tmp_path / "snli_1.0")
    noise = np.random.default_rng(0).bytes(3_500_000)
    (folder / "noise.bin").write_bytes(noise)
    archive = tmp_path / kind
    if kind.endswith("zip"):
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
            for path in sorted(folder.iterdir()):
                zipped.write(path, path.name)
    else:
        with tarfile.open(archive, "w:gz") as tarred:
            tarred.add(folder, "snli_1.0")
    seen: dict[str, tuple[int, int | None]] = {}

    def show(items: Iterable[object], what: str, total: int | None) -> Iterator[object]:
        seen[what] = (0, total)
        for item in items:
            seen[what] = (seen[what][0] + 1, total)
            yield item

    with show_progress(show):
        got = fetch("snli", str(archive))
        counts = SNLI.check(got)
        verify_checksums(SNLI, got)
    rows = {split: sum(labels.values()) for split, labels in counts.items()}
    assert next(got.rglob("noise.bin")).read_bytes() == noise
    assert seen == {
        f"unpacking {kind}, MB": (4, 4),
        "reading snli_1.0_train.jsonl": (rows["train"], None),
        "reading snli_1.0_dev.jsonl": (rows["validation"], None),
        "reading snli_1.0_test.jsonl": (rows["test"], None),
        "writing checksums": (4, 4),
        "comparing checksums": (4, 4),
    }


def test_augmentation_is_a_function_of_the_draw_and_stays_in_the_image() -> None:
    images = torch.arange(2 * 3 * 6 * 6, dtype=torch.uint8).view(2, 3, 6, 6)
    data = Images(images, torch.tensor([0, 1]), padding=2)
    rows = torch.tensor([0, 1])
    here, there = (data.gather(rows, (0, 1, "local", k))[0] for k in (5, 6))
    assert torch.equal(here, data.gather(rows, (0, 1, "local", 5))[0])
    assert not torch.equal(here, there)
    plain = data.gather(rows, ())[0]
    values = set(plain[0, 0].flatten().tolist()) | {0.0}
    assert set(here[0, 0].flatten().tolist()) <= values


def test_decoded_crops_repeat_and_prefetching_changes_nothing(tmp_path: Path) -> None:
    from episode.data.batches import Batches

    folder = write_imagenet(tmp_path)
    found = list(IMAGENET.rows(folder)["train"])
    files, labels = [row.path for row in found], torch.tensor([row.label for row in found])
    data = ImageFiles(files, labels, 16)
    batches = Batches(data, 4, seed=0, client=1)
    ahead = [batches.draw("local", k) for k in (0, 1, 2, 1)]
    fresh = [Batches(data, 4, seed=0, client=1).draw("local", k) for k in (0, 1, 2, 1)]
    for a, b in zip(ahead, fresh, strict=True):
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])
    assert ahead[0][0].shape == (4, 3, 16, 16)
    central = decode(files[0], 16, None)
    assert central[..., 0].mean() > 150 > 100 > central[..., 1].mean()


def test_a_folder_without_the_official_files_is_named_and_not_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "notes.docx").write_bytes(b"x")
    with pytest.raises(
        EpisodeError, match=r"has no snli_1\.0_train\.jsonl, and nothing else"
    ) as told:
        fetch("snli", str(tmp_path))
    assert "connection" not in str(told.value)
