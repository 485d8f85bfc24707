"""Which images a process sees, in which order, and what becomes of a file on its way to the device."""

import os
import random
import struct
import zlib

import numpy as np
import PIL.Image
import pytest
import torch
import torchvision.transforms
from torchvision.datasets import ImageFolder

import main

# ------------------------------------------------------------------------------------------------------- the sampler


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("batch_size", [1, 4, 7])
@pytest.mark.parametrize("count", [56, 57, 100, 173])
def test_train_batches_share_out_one_permutation(count, batch_size, world_size):
    for seed, epoch in (0, 0), (0, 3), (2**63 - 1, 1):
        ranks = [list(main.train_batches(count, batch_size, r, world_size, seed, epoch)) for r in range(world_size)]
        steps = count // (batch_size * world_size)
        assert [len(batches) for batches in ranks] == [steps] * world_size
        assert {len(batch) for batches in ranks for batch in batches} == {batch_size}
        # One process with the global batch sees the same images in the same steps.
        alone = list(main.train_batches(count, batch_size * world_size, 0, 1, seed, epoch))
        together = [[i for batches in ranks for i in batches[step]] for step in range(steps)]
        assert together == alone
        seen = [i for batch in together for i in batch]
        assert len(set(seen)) == len(seen) == steps * batch_size * world_size
        assert set(seen) <= set(range(count))


def test_train_batches_are_the_beginning_of_one_permutation():
    """What is dropped is the end of it: a smaller batch goes on where a larger one stops."""
    whole = [i for batch in main.train_batches(103, 1, 0, 1, 5, 2) for i in batch]
    assert sorted(whole) == list(range(103))
    for batch_size in 2, 10, 51, 103:
        part = [i for batch in main.train_batches(103, batch_size, 0, 1, 5, 2) for i in batch]
        assert part == whole[: len(part)]


def test_train_order_depends_on_seed_and_epoch_alone():
    def order(seed, epoch):
        return [i for batch in main.train_batches(200, 10, 0, 1, seed, epoch) for i in batch]

    torch.manual_seed(1)
    first = order(0, 0)
    torch.manual_seed(2)
    assert order(0, 0) == first
    orders = [order(seed, epoch) for seed in (0, 1, 2) for epoch in (0, 1, 2)]
    assert len({tuple(o) for o in orders}) == 9
    assert first != sorted(first)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 64])
def test_val_batches_hold_each_image_once(batch_size, world_size):
    for count in 1, 2, 6, 7, 8, 9, 55, 56, 57, 112, 113:
        ranks = [list(main.val_batches(count, batch_size, r, world_size)) for r in range(world_size)]
        assert len({len(batches) for batches in ranks}) == 1
        assert {len(batch) for batches in ranks for batch in batches} == {batch_size}
        seen = [i for batches in ranks for batch in batches for i in batch]
        assert sorted(i for i in seen if i != main.PADDING) == list(range(count))
        assert len(seen) - count < batch_size * world_size


# --------------------------------------------------------------------------------------------------- the folder scan


def touch(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "wb").close()


def assert_like_torchvision(folder):
    scanned = main.scan_folder(folder)
    expected = ImageFolder(folder)
    assert scanned.classes == expected.classes
    assert [(scanned.path(i), scanned.label(i)) for i in range(len(scanned))] == expected.samples
    return scanned


NAMES = [
    "b/2.jpg",
    "b/10.jpg",
    "b/1.JPEG",
    "B/upper.PNG",
    "a/x.png",
    "a/X.png",
    "a/sub/deep/2.bmp",
    "a/sub/1.webp",
    "a/sub.png",
    "a/sub-1/0.tif",
    "c d/with space.ppm",
    "c d/new\nline.jpg",
    "c d/\"quotes\" and 'more'.jpg",
    "été/naïve.jpeg",
    "日本/犬.jpg",
    "z/no image.txt",
    "z/jpg",
    "z/.hidden.jpg",
    "z/archive.jpg.zip",
    "z/9.TIFF",
]


def test_scan_is_like_torchvision(tmp_path):
    for name in NAMES:
        touch(tmp_path / name)
    touch(tmp_path / "not a folder.jpg")
    scanned = assert_like_torchvision(str(tmp_path))
    assert len(scanned) == len(NAMES) - 3
    assert all(os.path.isfile(scanned.path(i)) for i in range(len(scanned)))


def test_scan_follows_links(tmp_path):
    touch(tmp_path / "elsewhere" / "1.png")
    touch(tmp_path / "elsewhere" / "sub" / "2.png")
    touch(tmp_path / "tree" / "a" / "1.png")
    os.symlink(tmp_path / "elsewhere", tmp_path / "tree" / "linked class")
    os.symlink(tmp_path / "elsewhere" / "sub", tmp_path / "tree" / "a" / "linked folder")
    os.symlink(tmp_path / "elsewhere" / "1.png", tmp_path / "tree" / "a" / "0.png")
    scanned = assert_like_torchvision(str(tmp_path / "tree"))
    assert len(scanned) == 5


def test_scan_with_names_that_are_not_utf8(tmp_path):
    touch(os.path.join(os.fsencode(tmp_path), b"caf\xe9", b"\xff\xfe.jpg"))
    touch(os.path.join(os.fsencode(tmp_path), b"plain", b"1.jpg"))
    scanned = assert_like_torchvision(str(tmp_path))
    assert os.fsencode(scanned.path(0)).endswith(b"/caf\xe9/\xff\xfe.jpg")


@pytest.mark.parametrize("ending", ["", "/", "//", "/."])
def test_scan_of_a_folder_however_written(tmp_path, monkeypatch, ending):
    """The slash that a shell completes is part of nothing."""
    touch(tmp_path / "tree" / "a" / "1.jpg")
    touch(tmp_path / "tree" / "b" / "2.jpg")
    monkeypatch.chdir(tmp_path)
    for folder in f"tree{ending}", f"{tmp_path}/tree{ending}":
        scanned = main.scan_folder(folder)
        assert [os.path.samefile(scanned.path(i), f"tree/{name}") for i, name in enumerate(["a/1.jpg", "b/2.jpg"])]


def test_scan_numbers_classes_as_given(tmp_path):
    """A validation folder may lack classes; the others keep the numbers they have in training."""
    touch(tmp_path / "emu" / "1.jpg")
    touch(tmp_path / "ant" / "2.jpg")
    scanned = main.scan_folder(str(tmp_path), ["ant", "bee", "cat", "emu"])
    assert scanned.classes == ["ant", "bee", "cat", "emu"]
    assert [scanned.label(i) for i in range(len(scanned))] == [0, 3]


def test_scan_errors(tmp_path):
    folder = str(tmp_path / "tree")
    with pytest.raises(main.RunError, match=r"tree.*No such file"):
        main.scan_folder(folder)
    os.mkdir(folder)
    with pytest.raises(main.RunError, match=r"tree.*no folders"):
        main.scan_folder(folder)
    touch(tmp_path / "tree" / "full" / "1.jpg")
    touch(tmp_path / "tree" / "hollow" / "notes.txt")
    with pytest.raises(main.RunError, match=r"hollow.*no image"):
        main.scan_folder(folder)
    with pytest.raises(main.RunError, match="class 'full'"):
        main.scan_folder(folder, ["hollow"])
    with pytest.raises(main.RunError, match="Not a directory"):
        main.scan_folder(str(tmp_path / "tree" / "full" / "1.jpg"))


# ---------------------------------------------------------------------------------------------------------- decoding


def picture(mode="RGB", size=(53, 37)):
    """Return a picture with smooth and with busy parts."""
    noise = np.random.default_rng(0).integers(0, 256, (9, 7, 4), dtype=np.uint8)
    image = PIL.Image.fromarray(noise).resize(size, PIL.Image.Resampling.BICUBIC)
    return image if mode == "RGBA" else image.convert("RGB").convert(mode)


def by_pil(path):
    with PIL.Image.open(path) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


@pytest.mark.parametrize(
    ("mode", "name", "options"),
    [
        ("RGB", "a.jpg", {}),
        ("RGB", "a.jpg", {"progressive": True, "subsampling": 0, "quality": 95}),
        ("RGB", "a.jpg", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"}),
        ("L", "a.jpg", {}),
        ("CMYK", "a.jpg", {}),
        ("RGB", "a.png", {}),
        ("L", "a.png", {}),
        ("1", "a.png", {}),
        ("P", "a.png", {}),
        ("P", "a.png", {"transparency": 3}),
        ("LA", "a.png", {}),
        ("RGBA", "a.png", {}),
        ("P", "a.gif", {}),
        ("RGB", "a.webp", {}),
        ("RGBA", "a.webp", {"lossless": True, "exact": True}),
        ("RGB", "a.bmp", {}),
        ("P", "a.bmp", {}),
        ("RGB", "a.tiff", {}),
        ("CMYK", "a.tif", {}),
        ("L", "a.pgm", {}),
        ("RGB", "a.ppm", {}),
    ],
)
def test_read_image_equals_pil(tmp_path, mode, name, options):
    """Bit for bit, CMYK JPEG files included."""
    path = str(tmp_path / name)
    picture(mode).save(path, **options)
    image = main.read_image(path)
    assert (image.dtype, image.shape) == (torch.uint8, (3, 37, 53))
    assert np.array_equal(image.numpy(), by_pil(path))


def test_read_image_looks_at_the_bytes_not_at_the_name(tmp_path):
    """ImageNet has a PNG file that is called .JPEG."""
    path = str(tmp_path / "a.JPEG")
    picture().save(path, format="PNG")
    assert np.array_equal(main.read_image(path).numpy(), np.asarray(picture()).transpose(2, 0, 1))


@pytest.mark.parametrize("name", ["a.gif", "a.webp"])
def test_read_image_takes_the_first_frame(tmp_path, name):
    path = str(tmp_path / name)
    frames = [picture().rotate(angle) for angle in (0, 90, 180)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    image = main.read_image(path)
    assert image.shape == (3, 37, 53)
    assert np.array_equal(image.numpy(), by_pil(path))


def png16(values):
    """Return a PNG file of 16-bit values [H, W, channels]; PIL writes none in colour."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, channels = values.shape
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in values)
    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 3: 2}[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("channels", [1, 3])
def test_read_image_of_16_bits(tmp_path, channels):
    values = np.random.default_rng(0).integers(0, 2**16, (5, 8, channels), dtype=np.uint16)
    path = tmp_path / "a.png"
    path.write_bytes(png16(values))
    image = main.read_image(str(path))
    assert image.dtype is torch.uint8
    assert np.array_equal(image.numpy(), np.broadcast_to(values >> 8, (5, 8, 3)).transpose(2, 0, 1))


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_read_image_refuses_what_pil_would_clip(tmp_path, mode):
    pixels = np.zeros((9, 8), {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode])
    PIL.Image.fromarray(pixels).save(tmp_path / "a.tiff")
    with pytest.raises(main.RunError, match=rf"a\.tiff.*pixels of mode {mode}"):
        main.read_image(str(tmp_path / "a.tiff"))


def test_read_image_does_not_wait_for_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(main.RunError, match=r"a\.png.*no image format"):
        main.read_image(str(tmp_path / "a.png"))


@pytest.mark.parametrize("kind", ["empty", "text", "cut PNG", "cut JPEG", "cut BMP", "folder", "missing"])
def test_read_image_names_a_broken_file(tmp_path, kind):
    path = tmp_path / "broken one.jpg"
    if kind.startswith("cut"):
        picture().save(path, format=kind[4:])
        path.write_bytes(path.read_bytes()[: {"PNG": 500, "JPEG": 200, "BMP": 100}[kind[4:]]])
    elif kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes(b"<html>404 Not Found</html>" if kind == "text" else b"")
    with pytest.raises(main.RunError) as error:
        main.read_image(str(path))
    assert repr(str(path)) in str(error.value)
    assert "\n" not in str(error.value)


# -------------------------------------------------------------------------------------------------------- transforms


def options(*more):
    args = main.parse_args(["--device=cpu", "--image-size=32", "--resize-size=36", "--seed=3", *map(str, more)])
    args.rank, args.world_size, args.processes, args.rank_batch = 0, 1, 1, args.batch_size
    args.start_step, args.rank_workers = 0, args.workers
    return args


def tensor(size):
    return torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


SIZES = [(61, 97), (97, 61), (300, 500), (20, 30), (36, 36), (32, 32), (33, 200), (1, 1), (2, 90)]


@pytest.mark.parametrize("size", SIZES)
def test_transforms_give_uint8_of_one_size(size):
    args = options()
    for seed in range(20):
        image = main.train_transform(tensor(size), seed, args)
        assert (image.dtype, image.shape) == (torch.uint8, (3, 32, 32))
    image = main.val_transform(tensor(size), args)
    assert (image.dtype, image.shape) == (torch.uint8, (3, 32, 32))


def test_train_transform_depends_on_the_seed_alone():
    args, image = options(), tensor((50, 60))
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = [main.train_transform(image, seed, args) for seed in range(8)]
    assert torch.equal(torch.get_rng_state(), state)  # the model's draws don't depend on the images
    torch.manual_seed(12)
    again = [main.train_transform(image, seed, args) for seed in range(8)]
    assert all(map(torch.equal, first, again))
    assert len({image.numpy().tobytes() for image in first}) == 8


@pytest.mark.parametrize("size", [(300, 500), (50, 60), (33, 200), (200, 33), (1, 1), (1, 500)])
def test_random_part_is_drawn_as_torchvision_draws_it(size):
    """Area, aspect ratio and place, by the means of many draws."""
    draw, scale = random.Random(1), [0.08, 1.0]
    torch.manual_seed(1)
    ours = torch.tensor([main.random_part(*size, scale, draw) for _ in range(3000)], dtype=torch.float64)
    image = torch.empty(3, *size, dtype=torch.uint8)
    theirs = [torchvision.transforms.RandomResizedCrop.get_params(image, scale, [3 / 4, 4 / 3]) for _ in range(3000)]
    theirs = torch.tensor(theirs, dtype=torch.float64)
    for parts in ours, theirs:
        assert (parts[:, :2] >= 0).all()
        assert (parts[:, :2] + parts[:, 2:] <= torch.tensor(size)).all()
    unit = torch.tensor([size[0], size[1], size[0], size[1]])
    torch.testing.assert_close((ours / unit).mean(0), (theirs / unit).mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close((ours / unit).std(0), (theirs / unit).std(0), rtol=0, atol=0.02)


def test_train_transform_crops_and_flips_as_told():
    """A crop of everything is a plain resize; a flip of probability 1 mirrors it."""
    image = tensor((32, 32))
    still = options("--crop-scale", 1, 1, "--hflip", 0)
    mirrored = options("--crop-scale", 1, 1, "--hflip", 1)
    for seed in range(30):
        assert main.train_transform(image, seed, mirrored).equal(main.train_transform(image, seed, still).flip(-1))
    assert any(main.train_transform(image, seed, still).equal(image) for seed in range(30))
    half = options("--crop-scale", 1, 1)
    flipped = sum(
        not main.train_transform(image, seed, half).equal(main.train_transform(image, seed, still))
        for seed in range(400)
    )
    assert 140 < flipped < 260  # 200 ± 6 standard deviations of 10


@pytest.mark.parametrize("size", SIZES[:-1])  # the last is enormous when its shorter side is resized
@pytest.mark.parametrize(("resize", "crop"), [(36, 32), (256, 224), (32, 32), (20, 32)])
def test_val_transform_is_pils(size, resize, crop):
    """Resized with antialiasing and cropped as PIL does, but for the last bit of rounding."""
    image = tensor(size)
    args = options("--resize-size", resize, "--image-size", crop)
    steps = [torchvision.transforms.Resize(max(resize, crop)), torchvision.transforms.CenterCrop(crop)]
    expected = torchvision.transforms.Compose(steps)(PIL.Image.fromarray(image.permute(1, 2, 0).numpy()))
    difference = main.val_transform(image, args).int() - torch.from_numpy(np.array(expected)).permute(2, 0, 1).int()
    assert difference.abs().max() <= 1
    assert (difference != 0).float().mean() < 0.05


# ----------------------------------------------------------------------------------------------------------- batches


@pytest.fixture(scope="module")
def datasets(tree):
    train_images = main.scan_folder(str(tree / "train"))
    return train_images, main.scan_folder(str(tree / "val"), train_images.classes)


def batches(datasets, *more):
    args = options("--batch-size", 8, "--epochs", 2, *more)
    return list(main.load_batches(datasets, torch.device("cpu"), torch.distributed.HashStore(), args))


def test_batches_do_not_depend_on_the_workers(datasets):
    alone, helped = batches(datasets, "--workers", 0), batches(datasets, "--workers", 2)
    assert [count for _, _, count in alone] == [8, 8, 8, 8, 3] * 2
    for one, other in zip(alone, helped, strict=True):
        assert one[2] == other[2]
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_batches_are_normalised_images(datasets):
    loaded = batches(datasets, "--workers", 0)
    images, targets, count = loaded[4]  # the last validation batch: images 8, 9 and 10
    assert (images.dtype, images.shape, targets.shape, count) == (torch.float32, (8, 3, 32, 32), (8,), 3)
    assert targets.tolist() == [datasets[1].label(i) for i in (8, 9, 10)] + [main.IGNORED] * 5
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    for slot in range(3):
        pixels = main.val_transform(datasets[1].read(8 + slot), options())
        expected = (pixels / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
        torch.testing.assert_close(images[slot], expected, rtol=1e-5, atol=1e-5)


def test_batches_augment_anew_each_epoch(datasets):
    """All training images come in both epochs, in another order and cropped otherwise."""
    loaded = batches(datasets, "--workers", 0)
    epochs = [{image.numpy().tobytes() for images, _, _ in loaded[i : i + 3] for image in images} for i in (0, 5)]
    assert [len(epoch) for epoch in epochs] == [24, 24]
    assert not epochs[0] & epochs[1]
    labels = [[label for _, targets, _ in loaded[i : i + 3] for label in targets.tolist()] for i in (0, 5)]
    assert labels[0] != labels[1]
    assert sorted(labels[0]) == sorted(labels[1]) == sorted(datasets[0].labels.tolist())


def test_batches_raise_for_a_broken_image(tmp_path, make_tree):
    folder = make_tree(tmp_path)
    (folder / "train" / "dog" / "001.png").write_bytes(b"no image")
    train_images = main.scan_folder(str(folder / "train"))
    for workers in 0, 2:
        with pytest.raises(main.RunError, match=r"dog/001\.png"):
            batches([train_images, train_images], "--workers", workers)


def test_dummy_images_can_be_learnt():
    """Images of a class are alike, those of others are not; validation images are not training images."""
    train_images, val_images = main.open_datasets(options("--dummy", 2000))
    assert (len(train_images), len(val_images)) == (2000, 78)
    classes = len(train_images.classes)
    assert {train_images.label(i) for i in range(2000)} == set(range(classes))
    assert train_images.read(5).equal(train_images.read(5))
    assert not train_images.read(5).equal(val_images.read(5))

    def distance(a, b):
        return (a.read(5).float() - b[0].read(b[1]).float()).abs().mean()

    alike = distance(train_images, (train_images, 5 + classes)), distance(train_images, (val_images, 5))
    others = [distance(train_images, (train_images, i)) for i in range(classes) if i != 5]
    assert max(alike) < min(others)
