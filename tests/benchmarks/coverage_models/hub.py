"""Small backbones of keras_hub, where it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tests.benchmarks.coverage_models.registry import Built, NotInstalledError, Random, compiled, register, register_all

TOKENS = 50
LENGTH = 8
SIDE = 32

_BLOCKS = {"vocabulary_size": TOKENS, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
_GROUPED = {
    "vocabulary_size": TOKENS,
    "num_layers": 2,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
}
_VISION = {"image_shape": (SIDE, SIDE, 3), "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16}


def hub() -> Any:
    """The package.

    Raises:
        NotInstalledError: It is not installed, or not with what it needs.
    """
    try:
        import keras_hub
    except ImportError as error:
        raise NotInstalledError(f"keras_hub: {error}") from error
    return keras_hub


def _backbone(name: str, settings: Mapping[str, Any]) -> Any:
    return getattr(hub().models, f"{name}Backbone")(**settings)


def _sentences(backbone: Any) -> dict[str, np.ndarray]:
    """A batch for each input that a backbone of texts has."""
    random = Random()
    batch = {}
    for name in backbone.input:
        is_mask = "mask" in name
        batch[name] = np.ones((random.rows, LENGTH), np.int32) if is_mask else random.below(2, LENGTH)
        if "token_ids" in name:
            batch[name] = random.below(TOKENS, LENGTH)
    return batch


def _first_output(outputs: Any) -> Any:
    """The output for each token, where a backbone has several."""
    if not isinstance(outputs, dict):
        return outputs
    for name in ("decoder_sequence_output", "sequence_output"):
        if name in outputs:
            return outputs[name]
    return next(iter(outputs.values()))


def of_texts(name: str, settings: Mapping[str, Any]) -> Built:
    """A backbone that takes token numbers, and scores of tokens."""
    backbone = _backbone(name, settings)
    scores = layers.Dense(TOKENS, name="scores")(_first_output(backbone.output))
    model = compiled(keras.Model(backbone.input, scores))
    return Built(model=model, inputs=_sentences(backbone))


def of_images(name: str, settings: Mapping[str, Any]) -> keras.Model:
    """A backbone that takes images; its values are averaged."""
    backbone = _backbone(name, settings)
    x = _first_output(backbone.output)
    x = layers.GlobalAveragePooling2D()(x) if len(x.shape) == 4 else layers.GlobalAveragePooling1D()(x)
    return compiled(keras.Model(backbone.input, layers.Dense(10, name="scores")(x)))


_TEXTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "bert": ("Bert", _BLOCKS),
    "gpt2": ("GPT2", _BLOCKS),
    "llama": ("Llama", _GROUPED),
    "llama3-tied": ("Llama3", _GROUPED | {"tie_word_embeddings": True}),
    "gemma": ("Gemma", _GROUPED | {"head_dim": 4}),
    "gemma2": (
        "Gemma",
        _GROUPED
        | {"head_dim": 4, "use_post_ffw_norm": True, "use_post_attention_norm": True, "attention_logit_soft_cap": 50.0}
        | {"final_logit_soft_cap": 30.0, "use_sliding_window_attention": True, "sliding_window_size": 4},
    ),
    "gemma3": ("Gemma3", _GROUPED | {"head_dim": 4, "image_size": None}),
    "t5": ("T5", _BLOCKS),
    "bart": ("Bart", _BLOCKS),
    "mistral": ("Mistral", _GROUPED | {"sliding_window": 4}),
    "mixtral": ("Mixtral", _GROUPED | {"num_experts": 4}),
    "roberta": ("Roberta", _BLOCKS),
    "deberta": ("DebertaV3", _BLOCKS | {"bucket_size": 8, "max_sequence_length": 16}),
    "albert": ("Albert", _BLOCKS | {"embedding_dim": 8}),
    "opt": ("OPT", _BLOCKS),
    "falcon": (
        "Falcon",
        {
            "vocabulary_size": TOKENS,
            "num_layers": 2,
            "num_attention_heads": 2,
            "hidden_dim": 16,
            "intermediate_dim": 32,
        },
    ),
    "bloom": ("Bloom", _BLOCKS),
    "gpt-neox": ("GPTNeoX", _BLOCKS),
    "distilbert": ("DistilBert", _BLOCKS),
    "electra": (
        "Electra",
        {"vocab_size": TOKENS, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "embedding_dim": 8}
        | {"intermediate_dim": 32},
    ),
    "fnet": ("FNet", {key: value for key, value in _BLOCKS.items() if key != "num_heads"}),
    "xlnet": ("XLNet", _BLOCKS),
    "phi3": ("Phi3", _GROUPED),
    "qwen2": ("Qwen", _GROUPED),
    "qwen3": ("Qwen3", _GROUPED | {"head_dim": 4}),
    "qwen-moe": (
        "QwenMoe",
        _GROUPED | {"moe_intermediate_dim": 16, "shared_expert_intermediate_dim": 16, "num_experts": 4, "top_k": 2},
    ),
    "gpt-oss": ("GptOss", _GROUPED | {"num_experts": 4}),
    "rwkv7": (
        "RWKV7",
        {"hidden_size": 16, "head_size": 8, "num_layers": 2, "vocabulary_size": TOKENS, "intermediate_dim": 32}
        | {"gate_lora": 8, "mv_lora": 8, "aaa_lora": 8, "decay_lora": 8},
    ),
    "roformer": ("RoformerV2", _BLOCKS | {"head_size": 8}),
    "esm": ("ESM", _BLOCKS),
}

_IMAGES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "vit": ("ViT", _VISION | {"mlp_dim": 32}),
    "deit": ("DeiT", _VISION | {"intermediate_dim": 32}),
    "swin": (
        "SwinTransformer",
        {"image_shape": (SIDE, SIDE, 3), "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4},
    ),
    "vit-det": (
        "ViTDet",
        {"hidden_size": 16, "num_layers": 2, "intermediate_dim": 32, "num_heads": 2, "window_size": 2}
        | {"global_attention_layer_indices": [1], "image_shape": (64, 64, 3), "num_output_channels": 8},
    ),
    "mit": (
        "MiT",
        {"layerwise_depths": [1, 1], "num_layers": 2, "layerwise_num_heads": [1, 2], "layerwise_sr_ratios": [2, 1]}
        | {"max_drop_path_rate": 0.1, "layerwise_patch_sizes": [7, 3], "layerwise_strides": [4, 2]}
        | {"image_shape": (SIDE, SIDE, 3), "hidden_dims": [8, 16]},
    ),
    "resnet": (
        "ResNet",
        {"input_conv_filters": [64], "input_conv_kernel_sizes": [7], "stackwise_num_filters": [64, 16]}
        | {"stackwise_num_blocks": [1, 1], "stackwise_num_strides": [1, 2], "block_type": "bottleneck_block"}
        | {"image_shape": (SIDE, SIDE, 3)},
    ),
    "cspnet": (
        "CSPNet",
        {"stem_filters": 8, "stem_kernel_size": 3, "stem_strides": 1, "stackwise_depth": [1, 1]}
        | {
            "stackwise_strides": [1, 2],
            "stackwise_num_filters": [8, 16],
            "block_type": "dark_block",
            "stage_type": "dark",
        }
        | {"image_shape": (SIDE, SIDE, 3)},
    ),
}

register_all("hub", {name: partial(of_texts, *config) for name, config in _TEXTS.items()})
register_all("hub", {name: partial(of_images, *config) for name, config in _IMAGES.items()})


@register("hub/gpt2-tied")
def gpt2_tied() -> Built:
    """Scores of tokens by the matrix that embeds them."""
    backbone = _backbone("GPT2", _BLOCKS)
    model = compiled(keras.Model(backbone.input, backbone.token_embedding(backbone.output, reverse=True)))
    return Built(model=model, inputs=_sentences(backbone))


@register("hub/whisper")
def whisper() -> Built:
    """Sound to text: convolutions, an encoder and a decoder."""
    settings = {"num_mels": 8, "max_encoder_sequence_length": 32, "max_decoder_sequence_length": 16}
    backbone = _backbone("Whisper", _BLOCKS | settings)
    scores = layers.Dense(TOKENS, name="scores")(backbone.output["decoder_sequence_output"])
    random = Random()
    inputs = {
        "encoder_features": random.normal(32, 8),
        "decoder_token_ids": random.below(TOKENS, LENGTH),
        "decoder_padding_mask": np.ones((random.rows, LENGTH), np.int32),
    }
    return Built(model=compiled(keras.Model(backbone.input, scores)), inputs=inputs)


@register("hub/sam")
def sam() -> Built:
    """Segments by images and prompts; masks are empty."""
    library, side, random = hub(), 64, Random()
    encoder = library.models.ViTDetBackbone(
        hidden_size=16,
        num_layers=2,
        intermediate_dim=32,
        num_heads=2,
        global_attention_layer_indices=[1],
        patch_size=16,
        num_output_channels=8,
        window_size=2,
        image_shape=(side, side, 3),
    )
    backbone = library.models.SAMBackbone(
        image_encoder=encoder,
        prompt_encoder=library.layers.SAMPromptEncoder(
            hidden_size=8, image_embedding_size=(4, 4), input_image_size=(side, side), mask_in_channels=16
        ),
        mask_decoder=library.layers.SAMMaskDecoder(
            num_layers=1,
            hidden_size=8,
            intermediate_dim=16,
            num_heads=2,
            embedding_dim=8,
            num_multimask_outputs=3,
            iou_head_depth=2,
            iou_head_hidden_dim=8,
        ),
    )
    model = library.models.SAMImageSegmenter(backbone=backbone)
    model.compile("adam", "mse", jit_compile=False)
    inputs = {
        "images": random.normal(side, side, 3),
        "points": random.normal(1, 2),
        "labels": np.ones((random.rows, 1), np.float32),
        "boxes": random.normal(1, 2, 2),
        "masks": np.zeros((random.rows, 0, side // 4, side // 4, 1), np.float32),
    }
    return Built(model=model, inputs=inputs)


@register("hub/clip", modes=("inference",))
def clip() -> Built:
    """Two towers whose rows meet in a matrix of similarities."""
    library, random = hub(), Random()
    vision = library.models.CLIPVisionEncoder(
        patch_size=8, hidden_dim=16, num_layers=2, num_heads=2, intermediate_dim=32, image_shape=(SIDE, SIDE, 3)
    )
    text = library.models.CLIPTextEncoder(
        vocabulary_size=TOKENS,
        embedding_dim=16,
        hidden_dim=16,
        num_layers=2,
        num_heads=2,
        intermediate_dim=32,
        max_sequence_length=LENGTH,
    )
    model = library.models.CLIPBackbone(vision, text, projection_dim=16)
    return Built(
        model=model, inputs={"images": random.normal(SIDE, SIDE, 3), "token_ids": random.below(TOKENS, LENGTH)}
    )


@register("hub/stable-diffusion-vae")
def autoencoder_of_stable_diffusion() -> Built:
    """The image encoder and decoder of Stable Diffusion 3, with group normalization and attention."""
    hub()
    from keras_hub.src.models.vae.vae_backbone import VAEBackbone

    model = VAEBackbone(
        encoder_num_filters=[32, 32],
        encoder_num_blocks=[1, 1],
        decoder_num_filters=[32, 32],
        decoder_num_blocks=[1, 1],
    )
    return Built(model=compiled(model, loss="mse"), inputs=Random().normal(16, 16, 3))


@register("hub/diffusion-transformer")
def diffusion_transformer() -> Built:
    """The denoiser of Stable Diffusion 3: images and texts in one attention."""
    hub()
    from keras_hub.src.models.stable_diffusion_3.mmdit import MMDiT

    random = Random()
    model = MMDiT(
        2,
        16,
        2,
        2,
        4,
        latent_shape=(4, 4, 4),
        context_shape=(LENGTH, 16),
        pooled_projection_shape=(16,),
        qk_norm=None,
        dual_attention_indices=None,
    )
    inputs = {
        "latent": random.normal(4, 4, 4),
        "context": random.normal(LENGTH, 16),
        "pooled_projection": random.normal(16),
        "timestep": random.normal(1),
    }
    return Built(model=compiled(model, loss="mse"), inputs=inputs)


@register("hub/gpt2-cached", modes=("inference",))
def gpt2_cached() -> Built:
    """One token after those in a cache, as texts are generated."""
    library, random = hub(), Random()
    backbone = _backbone("GPT2", _BLOCKS | {"dropout": 0.0})
    language = library.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    token, cache = keras.Input((1,), dtype="int32"), keras.Input((2, 2, LENGTH, 2, 8))

    class Generate(layers.Layer):
        """The next token's scores, and the cache with it."""

        def __init__(self) -> None:
            super().__init__()
            self.language = language

        def call(self, token: Any, cache: Any) -> Any:
            logits, _, cache = self.language.call_with_cache(token, cache, 3)
            return ops.softmax(logits), cache

    model = keras.Model([token, cache], list(Generate()(token, cache)))
    return Built(model=model, inputs=[random.below(TOKENS, 1), random.normal(2, 2, LENGTH, 2, 8)])
