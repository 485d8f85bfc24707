"""One training step of a torchvision model of each given family, on a simulated NPU and on the CPU.

Prints a line of JSON for each: {"family": …, "error": …} or the largest relative difference and the losses.
"""

import copy
import json
import sys
import traceback

import torch
import torch_npu  # noqa: F401
import torchvision
from torch import nn
from torchvision.models import convnext, efficientnet, resnet, swin_transformer, vgg

CLASSES = 10


def small_vgg(batch_norm):
    """A VGG without the 100 million weights of its head."""
    model = vgg.VGG(vgg.make_layers(vgg.cfgs["A"], batch_norm), num_classes=CLASSES, init_weights=False)
    model.classifier = nn.Sequential(nn.Linear(512 * 7 * 7, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, CLASSES))
    return model


def small_convnext():
    blocks = [convnext.CNBlockConfig(32, 64, 1), convnext.CNBlockConfig(64, None, 1)]
    return convnext.ConvNeXt(blocks, stochastic_depth_prob=0.5, num_classes=CLASSES)


def small_swin(block, merging):
    return swin_transformer.SwinTransformer(
        patch_size=[4, 4],
        embed_dim=32,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[4, 4],
        dropout=0.1,
        stochastic_depth_prob=0.5,
        num_classes=CLASSES,
        block=block,
        downsample_layer=merging,
    )


def by_name(name, **options):
    return lambda: torchvision.models.get_model(name, num_classes=CLASSES, **options)


def small_resnet(**options):
    return lambda: resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], num_classes=CLASSES, **options)


def small_efficientnet(version):
    def build():
        blocks, last_channel = efficientnet._efficientnet_conf(version, width_mult=0.5, depth_mult=0.3)
        if last_channel:
            blocks = [config for config in blocks if config.num_layers]
            for config in blocks:
                config.num_layers = 1
        return efficientnet.EfficientNet(blocks, 0.2, 0.5, num_classes=CLASSES, last_channel=last_channel)

    return build


# Family: how to build a small model of it, and the size of its images.
FAMILIES = {
    "alexnet": (by_name("alexnet"), 64),
    "vgg": (lambda: small_vgg(False), 32),
    "vgg_bn": (lambda: small_vgg(True), 32),
    "resnet": (by_name("resnet18"), 32),
    "resnext": (small_resnet(groups=32, width_per_group=4), 32),
    "wide_resnet": (small_resnet(width_per_group=128), 32),
    "densenet": (
        lambda: torchvision.models.DenseNet(16, (2, 2, 2, 2), 32, drop_rate=0.1, num_classes=CLASSES),
        32,
    ),
    "googlenet": (by_name("googlenet", aux_logits=True, init_weights=False), 64),
    "inception": (by_name("inception_v3", aux_logits=False, init_weights=False), 75),
    "squeezenet": (by_name("squeezenet1_1"), 32),
    "shufflenet_v2": (by_name("shufflenet_v2_x0_5"), 32),
    "mobilenet_v2": (by_name("mobilenet_v2"), 32),
    "mobilenet_v3": (by_name("mobilenet_v3_small"), 32),
    "mnasnet": (by_name("mnasnet0_5"), 32),
    "efficientnet": (small_efficientnet("efficientnet_b0"), 32),
    "efficientnet_v2": (small_efficientnet("efficientnet_v2_s"), 32),
    "regnet": (by_name("regnet_y_400mf"), 32),
    "convnext": (small_convnext, 32),
    "vit": (
        lambda: torchvision.models.VisionTransformer(
            32, 16, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, dropout=0.1, num_classes=CLASSES
        ),
        32,
    ),
    "swin": (lambda: small_swin(swin_transformer.SwinTransformerBlock, swin_transformer.PatchMerging), 32),
    "swin_v2": (
        lambda: small_swin(swin_transformer.SwinTransformerBlockV2, swin_transformer.PatchMergingV2),
        32,
    ),
    "maxvit": (
        lambda: torchvision.models.MaxVit((64, 64), 16, 2, [16, 32], [1, 1], 16, 0.2, num_classes=CLASSES),
        64,
    ),
}


def without_randomness(model):
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, (nn.Dropout, torchvision.ops.StochasticDepth)):
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "drop_rate"):  # for functions that the module calls
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def step(model, images, targets, device, half=None):
    """The loss and the state after one step of SGD."""
    model = copy.deepcopy(model).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4, foreach=False)
    with torch.autocast("npu", dtype=half or torch.float16, enabled=half is not None):
        outputs = model(images.to(device))
        outputs = outputs if torch.is_tensor(outputs) else outputs.logits
        loss = nn.functional.cross_entropy(outputs, targets.to(device))
    loss.backward()
    optimizer.step()
    return loss.item(), {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}


def difference(state, expected):
    """The largest difference of two states, relative to the largest number of each tensor."""
    worst = 0.0
    for name, tensor in expected.items():
        scale = tensor.double().abs().max().clamp(min=1e-3)
        worst = max(worst, ((state[name].double() - tensor.double()).abs().max() / scale).item())
    return worst


def report(family):
    build, size = FAMILIES[family]
    torch.manual_seed(0)
    model = build()
    images, targets = torch.randn(2, 3, size, size), torch.tensor([1, 7])
    plain = without_randomness(model)
    loss, state = step(plain, images, targets, "npu:0")
    _, expected = step(plain, images, targets, "cpu")
    losses = {"float32": loss, "with randomness": step(model, images, targets, "npu:0")[0]}
    for half in (torch.float16, torch.bfloat16):
        losses[str(half)] = step(plain, images, targets, "npu:0", half)[0]
    return {"difference": difference(state, expected), "losses": losses}


if __name__ == "__main__":
    for family in sys.argv[1:]:
        try:
            result = report(family)
        except Exception:
            result = {"error": traceback.format_exc()}
        print(json.dumps({"family": family, **result}), flush=True)
