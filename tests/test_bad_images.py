"""Images that are broken, strange, enormous, gone or badly named: read as what they are, or told by name and reason,
and with --bad-images skip replaced or left out."""

import io
import os
import re
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

import main

SEED = 20


def picture(size=(53, 37), mode="RGB"):
    noise = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    return PIL.Image.fromarray(noise).resize(size, PIL.Image.Resampling.BICUBIC).convert(mode)


def encoded(kind, image=None, **options):
    file = io.BytesIO()
    (image or picture()).save(file, format=kind, **options)
    return file.getvalue()


def png_header(width, height, depth=8, kind=2, data=b""):
    """A PNG file that says it has that size, with `data` in place of the compressed pixels."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def jpeg_header(width, height):
    """A JPEG file whose frame header says it has that size."""
    data = bytearray(encoded("JPEG"))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


@pytest.fixture
def silent(capfd, recwarn):
    """Assert at the end that nothing was printed, by the decoders' libraries either, and nothing warned of but by PIL,
    to which main() does not listen."""
    yield
    assert capfd.readouterr() == ("", "")
    assert [str(warning.message) for warning in recwarn.list if "/PIL/" not in warning.filename] == []


# ----------------------------------------------------------------------------------------------------- strange images


def ycck():
    """A JPEG file of YCCK, which Photoshop writes: CMYK in YCC, with an Adobe marker that says so."""
    data = encoded("JPEG", picture(mode="CMYK"))
    marker = data.index(b"Adobe") + 11
    return data[:marker] + b"\x02" + data[marker + 1 :]


def broken_exif():
    data = b"Exif\0\0MM\0*\0\0\0\x08\0\x07" + bytes(range(200, 255)) * 3
    return encoded("JPEG", exif=data)


STRANGE = {
    "YCCK": ycck,
    "broken EXIF": broken_exif,
    "broken EXIF in WebP": lambda: encoded("WEBP", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x07" + bytes(range(200, 255))),
    "palette with transparencies": lambda: encoded("PNG", picture(mode="P"), transparency=bytes(range(200))),
    "palette with transparencies in GIF": lambda: encoded("GIF", picture(mode="P"), transparency=7),
    "1 bit in TIFF": lambda: encoded("TIFF", picture(mode="1")),
    "grey with alpha in WebP": lambda: encoded("WEBP", picture(mode="LA").convert("RGBA"), lossless=True),
    "JPEG and rubbish after it": lambda: encoded("JPEG") + b"rubbish" * 100,
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_strange_image_is_read_without_a_word(kind, tmp_path, silent):
    path = tmp_path / "a.jpg"
    path.write_bytes(STRANGE[kind]())
    image = main.read_image(str(path))
    assert (image.dtype, image.shape) == (torch.uint8, (3, 37, 53))


def test_a_run_over_strange_images_says_nothing(run, small, make_tree, tmp_path):
    folder = make_tree(tmp_path / "tree")
    for i, make in enumerate(STRANGE.values()):
        (folder / "train" / "cat" / f"strange {i}.jpg").write_bytes(make())
    result = run(folder, *small(arch="squeezenet1_1", workers=1), cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_ycck_has_pils_colours(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(ycck())
    expected = np.asarray(PIL.Image.open(path).convert("RGB")).transpose(2, 0, 1)
    assert np.abs(main.read_image(str(path)).numpy().astype(int) - expected).max() <= 3


def options(*more):
    args = main.parse_args(["--device=cpu", "--image-size=32", "--resize-size=36", "--seed=3", *map(str, more)])
    args.rank, args.world_size, args.processes, args.rank_batch, args.start_step = 0, 1, 1, args.batch_size, 0
    args.rank_workers = args.workers
    return args


# Peak memory of a process of its own: once at ease, then with the image.
PEAK = """
import resource, sys, main
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
args = main.parse_args(["--device=cpu"])
def load(path):
    image = main.read_image(path)
    return main.val_transform(image, args).shape, main.train_transform(image, 1, args).shape
load(sys.argv[1])
before = peak()
for path in sys.argv[2:]:
    try:
        print(load(path))
    except main.RunError as error:
        print(error)
print("MB:", peak() - before)
"""


def test_thin_images_take_little_memory(run, root, tmp_path):
    """Resized as they are to a shorter side of 256, they would be of a gigabyte."""
    names = [
        tmp_path / f"{width}x{height}.png" for width, height in [(60, 60), (1, 1), (1, 5000), (5000, 1), (2, 3000)]
    ]
    for name in names:
        picture(tuple(map(int, name.stem.split("x")))).save(name)
    result = run(*names, cwd=tmp_path, command=["-c", PEAK], env={"PYTHONPATH": str(root)})
    *shapes, memory = result.stdout.splitlines()
    assert shapes == ["(torch.Size([3, 224, 224]), torch.Size([3, 224, 224]))"] * 4, result.stderr
    assert int(memory.split()[1]) < 100


def test_a_thin_image_gives_the_same_pixels_as_if_resized_whole():
    """What is cut away before resizing makes no difference."""
    image = torch.randint(0, 256, (3, 9, 400), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    args = options()
    for turned in image, image.mT:
        whole = main.F.center_crop(main.F.resize(turned, [36], antialias=True), [32, 32])
        assert (main.val_transform(turned, args).int() - whole.int()).abs().max() <= 1


BOMBS = {
    "PNG header": lambda: png_header(2**31 - 1, 2**31 - 1),
    "PNG header of 10 GB": lambda: png_header(60_000, 60_000, data=zlib.compress(bytes(1000))),
    "JPEG header": lambda: jpeg_header(65_500, 65_500),
    "one bit a pixel": lambda: png_header(30_000, 30_000, 1, 0, zlib.compress(bytes(3751 * 30_000), 1)),
    "BMP header": lambda: (lambda data: data[:18] + struct.pack("<ii", 60_000, 60_000) + data[26:])(encoded("BMP")),
    "GIF header": lambda: (lambda data: data[:6] + struct.pack("<HH", 65_000, 65_000) + data[10:])(encoded("GIF")),
}


def test_bombs_are_refused_before_they_go_off(run, root, tmp_path):
    """Some kilobytes that claim to be, or are, gigabytes of pixels."""
    picture().save(tmp_path / "a.png")
    names = []
    for i, (kind, make) in enumerate(BOMBS.items()):
        names.append(tmp_path / f"{i} {kind}.jpg")
        names[-1].write_bytes(make())
    result = run(tmp_path / "a.png", *names, cwd=tmp_path, command=["-c", PEAK], env={"PYTHONPATH": str(root)})
    *messages, memory = result.stdout.splitlines()
    assert result.stderr == ""
    assert [re.match("'(.*)' cannot be read as an image", line)[1] for line in messages] == list(map(str, names))
    assert int(memory.split()[1]) < 400


def test_large_photographs_are_read(tmp_path, silent):
    """100 million pixels: more than PIL likes, but there are such cameras."""
    path = tmp_path / "a.jpg"
    PIL.Image.new("L", (11_600, 8_700), 70).save(path, quality=10)
    assert main.read_image(str(path)).shape == (3, 8_700, 11_600)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"])
def test_damaged_bytes_are_an_image_or_an_error(kind, tmp_path, recwarn):
    """Never a crash, another exception, or a warning; the decoders' libraries may have something to say."""
    noise, whole = np.random.default_rng(SEED), np.frombuffer(encoded(kind), np.uint8)
    path = tmp_path / "a.jpg"
    for i in range(60):
        data = whole.copy()
        places = noise.integers(0, min(len(data), 200 if i % 2 else len(data)), 1 + i % 5)
        data[places] = noise.integers(0, 256, len(places))
        path.write_bytes(data[: noise.integers(1, len(data))].tobytes() if i % 3 == 0 else data.tobytes())
        try:
            image = main.read_image(str(path))
        except main.RunError as error:
            assert str(error).startswith(f"{str(path)!r} cannot be read as an image (")
            assert "\n" not in str(error)
        else:
            assert (image.dtype, image.dim(), image.shape[0]) == (torch.uint8, 3, 3)
    assert [str(warning.message) for warning in recwarn.list if "/PIL/" not in warning.filename] == []


# ------------------------------------------------------------------------------------------------- what is no image


def refused(path, *needed):
    with pytest.raises(main.RunError) as error:
        main.read_image(path)
    assert str(error.value).startswith(f"{path!r} cannot be read as an image (")
    assert str(error.value).isprintable()
    for text in needed:
        assert text in str(error.value)


def test_random_bytes(tmp_path, silent):
    path = tmp_path / "a.jpg"
    path.write_bytes(np.random.default_rng(0).bytes(3000))
    refused(str(path))


@pytest.mark.parametrize("values", [np.full((37, 53), 40_000, np.uint16), np.full((37, 53), 0.5, np.float32)])
def test_pixels_of_more_than_8_bits_that_would_be_clipped(values, tmp_path):
    PIL.Image.fromarray(values).save(tmp_path / "a.tiff")
    refused(str(tmp_path / "a.tiff"), "not of 8 bits")


def test_a_link_to_nothing(tmp_path):
    os.symlink(tmp_path / "gone.jpg", tmp_path / "a.jpg")
    refused(str(tmp_path / "a.jpg"), "No such file")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    def denied(path, *_):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(main.os, "open", denied)
    refused(str(tmp_path / "a.jpg"), "Permission denied")


NAMES = {
    "space": b"a b.jpg",
    "quotes": b"a'\"b.jpg",
    "newline": b"a\nb.jpg",
    "control": b"a\x1b[31m\x07b.jpg",
    "no UTF-8": b"a\xff\xfeb.jpg",
    "percent and braces": b"%s {0}.jpg",
    "line separator": "a\u2028b.jpg".encode(),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_read_and_escaped_in_messages(name, tmp_path):
    folder = os.fsencode(tmp_path) + b"/train/cat/"
    os.makedirs(folder)
    Path(os.fsdecode(folder + NAMES[name])).write_bytes(encoded("JPEG"))
    images = main.scan_folder(str(tmp_path / "train"))
    assert images.read(0).shape == (3, 37, 53)
    Path(os.fsdecode(folder + NAMES[name])).write_bytes(b"no image")
    refused(images.path(0))


@pytest.mark.parametrize("name", ["newline", "no UTF-8"])
def test_a_bad_name_ends_a_run_with_one_line(name, call, small, make_tree, tmp_path, one_error):
    folder = make_tree(tmp_path / "tree")
    path = Path(os.fsdecode(os.fsencode(folder) + b"/train/cat/" + NAMES[name]))
    path.write_bytes(b"no image")
    one_error(call(folder, *small(batch_size=25), cwd=tmp_path), repr(str(path)))


def test_a_folder_that_is_named_like_an_image(call, small, make_tree, tmp_path):
    """It is a folder: what lies in it counts, as in torchvision."""
    folder = make_tree(tmp_path / "tree")
    (folder / "train" / "cat" / "x.jpg").mkdir()
    (folder / "train" / "cat" / "000.png").rename(folder / "train" / "cat" / "x.jpg" / "000.png")
    assert len(main.scan_folder(str(folder / "train"))) == 24


def test_files_that_vanish_after_the_scan(call, small, make_tree, tmp_path, one_error, monkeypatch):
    folder = make_tree(tmp_path / "tree")
    try_model = main.try_model

    def vanish(*args):
        (folder / "train" / "dog" / "001.png").unlink()
        return try_model(*args)

    monkeypatch.setattr(main, "try_model", vanish)
    result = call(folder, *small(), cwd=tmp_path)
    one_error(result, repr(str(folder / "train" / "dog" / "001.png")), "No such file", "mend or remove it")


# -------------------------------------------------------------------------------------------------- --bad-images skip


SKIP = ["--bad-images", "skip"]


@pytest.fixture
def bad_tree(make_tree, tmp_path):
    """Of 24 training images two neighbours are broken, and the last; of 11 validation images one."""
    folder = make_tree(tmp_path / "tree")
    for path in "train/cat/003.JPEG", "train/cat/006.png", "train/emu/023.JPEG", "val/dog/004.JPEG":
        (folder / path).write_bytes(b"no image")
    return folder


@pytest.fixture
def datasets(bad_tree):
    images = main.scan_folder(str(bad_tree / "train"))
    return images, main.scan_folder(str(bad_tree / "val"), images.classes)


def warnings_of(result):
    lines = result.stderr.splitlines()
    assert all(line.startswith("main.py: warning: ") for line in lines), result.stderr
    return lines


def test_the_nearest_image_takes_the_place(datasets):
    """With its own label; augmented as the one it stands for would have been."""
    images, targets, bad = main.Batches(datasets, options(*SKIP))[0, 5, [0, 1, 2, 23]]
    assert {(number, i) for number, i, _ in bad} == {(0, 1), (0, 2), (0, 23)}
    sources = [0, 0, 3, 22]
    assert targets.tolist() == [datasets[0].label(source) for source in sources]
    for i, source in (1, 0), (2, 3), (23, 22):
        shutil.copy(datasets[0].path(source), datasets[0].path(i))
    expected, _, bad = main.Batches(datasets, options())[0, 5, [0, 1, 2, 23]]
    assert torch.equal(images, expected)
    assert bad == []


def test_a_bad_image_is_left_out_of_validation(datasets):
    images, targets, bad = main.Batches(datasets, options(*SKIP))[1, 0, [4, 5, main.PADDING]]
    assert images.shape == (3, 32, 32, 3)
    assert (targets == main.IGNORED).tolist() == [False, True, True]
    assert [(number, i) for number, i, _ in bad] == [(1, 5)]


def test_no_image_at_all(datasets):
    for path in Path(datasets[0].root).rglob("*.*"):
        path.write_bytes(b"")
    error = main.Batches(datasets, options(*SKIP))[0, 0, [3]]
    assert isinstance(error, main.RunError)
    assert "none of 24 images can be read" in str(error)


def test_each_is_named_once(call, small, bad_tree, tmp_path, monkeypatch, read_log):
    """In two epochs; the steps are as many as ever, and validation is of ten images."""
    monkeypatch.setattr(main, "MAX_BAD_IMAGES", 0.2)
    result = call(bad_tree, *small(epochs=2), *SKIP, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    names = [re.search("'(.*)' cannot be read", line)[1] for line in warnings_of(result)]
    broken = ["train/cat/003.JPEG", "train/cat/006.png", "train/emu/023.JPEG", "val/dog/004.JPEG"]
    assert sorted(names) == [str(bad_tree / name) for name in broken]
    assert re.findall(r"^Epoch: \[(\d)\]\[(\d)/3\]", result.stdout, re.MULTILINE) == [
        (epoch, step) for epoch in "01" for step in "123"
    ]
    assert result.stdout.count("=> of 11 validation images, 1 can't be read and are not in these figures\n") == 2
    for row in read_log(tmp_path):
        assert float(row["val_acc1"]) % 10 == pytest.approx(0, abs=1e-6)
        assert float(row["train_acc1"]) * 24 / 100 == pytest.approx(round(float(row["train_acc1"]) * 24 / 100))


def test_each_is_named_once_by_two_processes(run, small, bad_tree, tmp_path, patched, root):
    """All of their loading processes included."""
    script = patched(tmp_path, "main.MAX_BAD_IMAGES = 0.2")
    given = [bad_tree, *small(epochs=2, workers=2, device_list="0,1"), *SKIP]
    result = run(*given, cwd=tmp_path, command=[script], env={"PYTHONPATH": str(root)})
    assert result.returncode == 0, result.stderr
    assert len(warnings_of(result)) == 4
    assert result.stdout.count("=> of 11 validation images, 1 can't be read and are not in these figures\n") == 2


def test_the_same_bits_with_any_number_of_workers(datasets, monkeypatch):
    monkeypatch.setattr(main, "MAX_BAD_IMAGES", 0.2)
    runs = []
    for workers in 0, 2:
        args = options(*SKIP, "--batch-size", 8, "--epochs", 1, "--workers", workers)
        runs.append(list(main.load_batches(datasets, torch.device("cpu"), torch.distributed.HashStore(), args)))
    assert [count for _, _, count in runs[0]] == [8, 8, 8, 7, 3]
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


@pytest.mark.parametrize("number", [0, 1])
def test_more_than_one_percent_is_too_many(number, capsys):
    datasets, store = [range(300), range(200)], torch.distributed.HashStore()
    allowed = [3, 2][number]
    for i in range(allowed):
        main.name_bad_images([(number, i, f"image {i}")] * 2, datasets, store)
    with pytest.raises(
        main.RunError, match=f"more than 1% of the {('training', 'validation')[number]} images.*image x"
    ):
        main.name_bad_images([(number, allowed, "image x")], datasets, store)
    assert capsys.readouterr().err.count("main.py: warning: ") == allowed + 1


@pytest.mark.parametrize("devices", ["0", "0,1"])
def test_too_many_end_the_run(devices, run, small, bad_tree, tmp_path, one_error):
    result = run(bad_tree, *small(workers=2, device_list=devices), *SKIP, cwd=tmp_path)
    one_error(result, "more than 1% of the training images can't be read", warned=True)


def test_without_skip_the_first_one_ends_the_run(call, small, bad_tree, tmp_path, one_error):
    one_error(call(bad_tree, *small(), cwd=tmp_path), "cannot be read as an image", "mend or remove it")
