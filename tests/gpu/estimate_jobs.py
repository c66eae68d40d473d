"""The jobs that `estimate.py` has predicted and measured: shapes and settings, no code.

Two sets. Each was written, predicted and committed before any of its jobs was measured, and is not changed any more.
"""

# Shapes as their publishers give them, or made up. Llama 8B and Qwen2.5 3B and 14B are in the estimator's table, and so are
# the image networks; the others are new to it, and no configuration was among its earlier points.
SMOLLM = dict(model_type="llama", hidden_size=960, num_hidden_layers=32, num_attention_heads=15, num_key_value_heads=5,
              intermediate_size=2560, vocab_size=49152, tie_word_embeddings=True, max_position_embeddings=8192)
QWEN3 = dict(model_type="qwen3", hidden_size=2048, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
             head_dim=128, intermediate_size=6144, vocab_size=151936, tie_word_embeddings=True)
PHI2 = dict(model_type="phi", hidden_size=2560, num_hidden_layers=32, num_attention_heads=32, intermediate_size=10240,
            vocab_size=51200, tie_word_embeddings=False)
STARCODER = dict(model_type="starcoder2", hidden_size=3072, num_hidden_layers=30, num_attention_heads=24,
                 num_key_value_heads=2, intermediate_size=12288, vocab_size=49152, tie_word_embeddings=True)
GEMMA3 = dict(model_type="gemma3_text", hidden_size=1152, num_hidden_layers=26, num_attention_heads=4,
              num_key_value_heads=1, head_dim=256, intermediate_size=6912, vocab_size=262144, tie_word_embeddings=True)
GPT2 = dict(model_type="gpt2", n_embd=1024, n_layer=12, n_head=16, vocab_size=32000, n_positions=2048)
PYTHIA_410M = dict(model_type="gpt_neox", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                   intermediate_size=4096, vocab_size=50304, tie_word_embeddings=False)
PYTHIA_2_8B = dict(PYTHIA_410M, hidden_size=2560, num_hidden_layers=32, num_attention_heads=32, intermediate_size=10240)
OPT = dict(model_type="opt", hidden_size=2560, num_hidden_layers=32, num_attention_heads=32, ffn_dim=10240,
           vocab_size=50272, max_position_embeddings=2048)
ROBERTA = dict(model_type="roberta", hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
               intermediate_size=3072, vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)
LLAMA_8B = dict(model_type="llama", hidden_size=4096, num_hidden_layers=32, num_attention_heads=32,
                num_key_value_heads=8, intermediate_size=14336, vocab_size=128256, tie_word_embeddings=False)
QWEN_14B = dict(model_type="qwen2", hidden_size=5120, num_hidden_layers=48, num_attention_heads=40,
                num_key_value_heads=8, intermediate_size=13824, vocab_size=152064, tie_word_embeddings=False)
QWEN_3B = dict(model_type="qwen2", hidden_size=2048, num_hidden_layers=36, num_attention_heads=16,
               num_key_value_heads=2, intermediate_size=11008, vocab_size=151936, tie_word_embeddings=True)
LLAMA_600M = dict(model_type="llama", hidden_size=1536, num_hidden_layers=16, num_attention_heads=24,
                  num_key_value_heads=24, intermediate_size=4096, vocab_size=64000, tie_word_embeddings=False)
MOE = dict(model_type="qwen3_moe", hidden_size=1024, num_hidden_layers=12, num_attention_heads=16,
           num_key_value_heads=4, head_dim=64, intermediate_size=3072, moe_intermediate_size=768, num_experts=16,
           num_experts_per_tok=4, vocab_size=32000, tie_word_embeddings=False)
FALCON = dict(model_type="falcon", hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, vocab_size=50304,
              multi_query=True, parallel_attn=True, bias=False, ffn_hidden_size=8192, tie_word_embeddings=True)
NEMOTRON = dict(model_type="nemotron", hidden_size=1536, num_hidden_layers=16, num_attention_heads=12,
                num_key_value_heads=4, head_dim=128, intermediate_size=6144, vocab_size=64000,
                tie_word_embeddings=False)
T5 = dict(model_type="t5", d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_decoder_layers=12, num_heads=12,
          vocab_size=32128, decoder_start_token_id=0, tie_word_embeddings=True)
STABLELM = dict(model_type="stablelm", hidden_size=2048, num_hidden_layers=24, num_attention_heads=32,
                num_key_value_heads=32, intermediate_size=5632, vocab_size=100352, use_qkv_bias=True,
                partial_rotary_factor=0.25, tie_word_embeddings=False)


def text(name, shape, **options):
    return dict(name=name, shape=shape, options=options)


def image(name, model, **options):
    return dict(name=name, shape=None, options=dict(model=model, **options))


FIRST = [
    text("smollm-360m", SMOLLM, precision="amp", optimizer="adamw", batch=8, sequence=1024),
    text("smollm-360m-checkpointed", SMOLLM, precision="amp", optimizer="adamw", batch=16, sequence=2048,
         checkpointing="full"),
    text("smollm-360m-fp32-eager", SMOLLM, precision="fp32", optimizer="sgd_momentum", batch=4, sequence=768,
         attention="eager"),
    text("qwen3-1.7b-bf16", QWEN3, precision="bf16", optimizer="adamw_fused", batch=4, sequence=1024),
    text("qwen3-1.7b-long", QWEN3, precision="amp", optimizer="adamw", batch=2, sequence=4096, checkpointing="full"),
    text("phi-2-bf16-sgd", PHI2, precision="bf16", optimizer="sgd", batch=2, sequence=512),
    text("starcoder2-3b", STARCODER, precision="bf16", optimizer="adamw", batch=2, sequence=1024),
    text("gemma3-1b-bf16", GEMMA3, precision="bf16", optimizer="adamw", batch=2, sequence=1024),
    text("gpt2-wide-eager", GPT2, precision="amp", optimizer="adamw", batch=4, sequence=2048, attention="eager"),
    text("pythia-410m-fp32", PYTHIA_410M, precision="fp32", optimizer="adamw", batch=8, sequence=512),
    text("pythia-2.8b-checkpointed", PYTHIA_2_8B, precision="amp", optimizer="sgd_momentum", batch=1, sequence=1024,
         checkpointing="full"),
    text("opt-2.7b-eager-checkpointed", OPT, precision="bf16", optimizer="adamw", batch=4, sequence=1024,
         attention="eager", checkpointing="full"),
    text("roberta-base", ROBERTA, precision="amp", optimizer="adamw_fused", batch=32, sequence=512),
    text("stablelm-2-1.6b", STABLELM, precision="bf16", optimizer="adamw_single", batch=2, sequence=2048),
    text("llama-600m-accumulating", LLAMA_600M, precision="amp", optimizer="adamw", batch=4, sequence=1024,
         accumulation=4),
    text("llama-600m-chunked-loss", LLAMA_600M, precision="amp", optimizer="adamw", batch=4, sequence=2048,
         lossChunk=1024),
    text("llama-600m-expandable", LLAMA_600M, precision="bf16", optimizer="adamw", batch=8, sequence=1024,
         expandableSegments=True),
    text("qwen2.5-3b-adafactor", QWEN_3B, precision="bf16", optimizer="adafactor", batch=2, sequence=1024,
         checkpointing="full"),
    text("llama3.1-8b-lora", LLAMA_8B, method="lora", precision="amp", optimizer="adamw", batch=2, sequence=2048,
         loraRank=16, loraTargets="attention", checkpointing="full"),
    text("qwen2.5-14b-lora-all", QWEN_14B, method="lora", precision="amp", optimizer="adamw", batch=1, sequence=1024,
         loraRank=32, loraTargets="all"),
    text("experts-16x4", MOE, precision="amp", optimizer="adamw", batch=4, sequence=512),
    text("falcon-multi-query", FALCON, precision="bf16", optimizer="adamw", batch=4, sequence=1024),
    text("nemotron-unfamiliar", NEMOTRON, precision="amp", optimizer="adamw", batch=4, sequence=1024),
    text("t5-base", T5, precision="amp", optimizer="adamw", batch=8, sequence=512),
    text("llama3.1-8b-generate", LLAMA_8B, task="generate", precision="bf16", batch=8, sequence=2048, newTokens=64),
    text("qwen2.5-3b-forward", QWEN_3B, task="generate", precision="fp32", batch=2, sequence=1024, newTokens=0),
    image("resnet50", "resnet50", precision="amp", optimizer="sgd_momentum", batch=256),
    image("convnext-tiny", "convnext_tiny", precision="fp32", optimizer="adamw", batch=64, imageSize=288),
    image("vit-b-16", "vit_b_16", precision="amp", optimizer="adamw", batch=128),
    image("efficientnet-b0-infer", "efficientnet_b0", task="generate", precision="fp32", batch=256),
    text("llama-600m-compiled", LLAMA_600M, precision="amp", optimizer="adamw", batch=4, sequence=1024, compile=True),
]

# The second set: other shapes, other families, other settings than any point before. Made-up shapes unless a publisher is
# named; image networks are those of the estimator's table, because it knows no others.
LLAMA_58M = dict(model_type="llama", hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=8,
                 intermediate_size=1376, vocab_size=32000, tie_word_embeddings=False)
LLAMA_1B = dict(model_type="llama", hidden_size=1792, num_hidden_layers=20, num_attention_heads=28,
                num_key_value_heads=4, intermediate_size=5120, vocab_size=80000, tie_word_embeddings=False)
LLAMA_6B = dict(model_type="llama", hidden_size=4096, num_hidden_layers=28, num_attention_heads=32,
                num_key_value_heads=4, intermediate_size=11008, vocab_size=64000, tie_word_embeddings=False)
MISTRAL = dict(model_type="mistral", hidden_size=2048, num_hidden_layers=24, num_attention_heads=32,
               num_key_value_heads=8, intermediate_size=7168, vocab_size=32768, sliding_window=None,
               tie_word_embeddings=False)
QWEN2 = dict(model_type="qwen2", hidden_size=1536, num_hidden_layers=24, num_attention_heads=12,
             num_key_value_heads=3, intermediate_size=6912, vocab_size=100352, tie_word_embeddings=False)
QWEN3_4B = dict(model_type="qwen3", hidden_size=2560, num_hidden_layers=36, num_attention_heads=32,
                num_key_value_heads=8, head_dim=128, intermediate_size=9728, vocab_size=151936,
                tie_word_embeddings=True)
GEMMA2 = dict(model_type="gemma2", hidden_size=2304, num_hidden_layers=26, num_attention_heads=8,
              num_key_value_heads=4, head_dim=256, intermediate_size=9216, vocab_size=256000, tie_word_embeddings=True)
GPT2_82M = dict(model_type="gpt2", n_embd=768, n_layer=6, n_head=12, vocab_size=50257, n_positions=1024)
GPT2_760M = dict(model_type="gpt2", n_embd=1536, n_layer=24, n_head=24, vocab_size=50304, n_positions=1024)
OPT_125M = dict(model_type="opt", hidden_size=768, num_hidden_layers=12, num_attention_heads=12, ffn_dim=3072,
                vocab_size=50272, max_position_embeddings=2048)
OPT_650M = dict(model_type="opt", hidden_size=1536, num_hidden_layers=20, num_attention_heads=24, ffn_dim=6144,
                vocab_size=50272, max_position_embeddings=2048)
BLOOM_560M = dict(model_type="bloom", hidden_size=1024, n_layer=24, n_head=16, vocab_size=250880)
BLOOM_1B = dict(model_type="bloom", hidden_size=1536, n_layer=24, n_head=16, vocab_size=250880)
GPT_NEO = dict(model_type="gpt_neo", hidden_size=768, num_layers=12, num_heads=12, vocab_size=50257,
               attention_types=[[["global", "local"], 6]], max_position_embeddings=2048)
GPT_J = dict(model_type="gptj", n_embd=1024, n_layer=16, n_head=16, rotary_dim=64, vocab_size=50400, n_positions=2048,
             tie_word_embeddings=False)
CODEGEN = dict(model_type="codegen", n_embd=1024, n_layer=20, n_head=16, rotary_dim=32, vocab_size=51200, n_ctx=2048,
               n_positions=2048, tie_word_embeddings=False)
BIGCODE = dict(model_type="gpt_bigcode", n_embd=2048, n_layer=24, n_head=16, n_inner=8192, vocab_size=49152,
               n_positions=8192, multi_query=True)
PYTHIA_160M = dict(PYTHIA_410M, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
PYTHIA_1_4B = dict(PYTHIA_410M, hidden_size=2048, intermediate_size=8192)
FALCON_RW = dict(model_type="falcon", hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, vocab_size=50304,
                 alibi=True, multi_query=False, parallel_attn=False, new_decoder_architecture=False, bias=True,
                 tie_word_embeddings=True)
PHI = dict(model_type="phi", hidden_size=1536, num_hidden_layers=20, num_attention_heads=24, intermediate_size=6144,
           vocab_size=51200, tie_word_embeddings=False)
PHI3 = dict(model_type="phi3", hidden_size=3072, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32,
            intermediate_size=8192, vocab_size=32064, tie_word_embeddings=False)
GRANITE = dict(model_type="granite", hidden_size=2048, num_hidden_layers=40, num_attention_heads=32,
               num_key_value_heads=8, intermediate_size=8192, vocab_size=49152, tie_word_embeddings=True)
OLMO2 = dict(model_type="olmo2", hidden_size=2048, num_hidden_layers=16, num_attention_heads=16,
             num_key_value_heads=16, intermediate_size=8192, vocab_size=100352, tie_word_embeddings=False)
OLMO_7B = dict(model_type="olmo", hidden_size=4096, num_hidden_layers=32, num_attention_heads=32,
               num_key_value_heads=32, intermediate_size=11008, vocab_size=50304, tie_word_embeddings=False)
COHERE = dict(model_type="cohere", hidden_size=2048, num_hidden_layers=16, num_attention_heads=16,
              num_key_value_heads=16, intermediate_size=5632, vocab_size=64000, tie_word_embeddings=True)
MIXTRAL = dict(model_type="mixtral", hidden_size=1024, num_hidden_layers=12, num_attention_heads=16,
               num_key_value_heads=4, intermediate_size=2816, num_local_experts=8, num_experts_per_tok=2,
               vocab_size=32000, sliding_window=None, tie_word_embeddings=False)
QWEN2_MOE = dict(model_type="qwen2_moe", hidden_size=1024, num_hidden_layers=12, num_attention_heads=16,
                 num_key_value_heads=16, intermediate_size=2816, moe_intermediate_size=704,
                 shared_expert_intermediate_size=2816, num_experts=16, num_experts_per_tok=2, vocab_size=151936,
                 tie_word_embeddings=False)
BERT_MEDIUM = dict(model_type="bert", hidden_size=512, num_hidden_layers=8, num_attention_heads=8,
                   intermediate_size=2048, vocab_size=30522, max_position_embeddings=512)
DISTILBERT = dict(model_type="distilbert", dim=768, n_layers=6, n_heads=12, hidden_dim=3072, vocab_size=30522,
                  max_position_embeddings=512)
XLM_ROBERTA = dict(model_type="xlm-roberta", hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
                   intermediate_size=3072, vocab_size=250002, max_position_embeddings=514, type_vocab_size=1)
DEBERTA = dict(model_type="deberta-v2", hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
               intermediate_size=3072, vocab_size=128100, max_position_embeddings=512, relative_attention=True,
               position_buckets=256, pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm", share_att_key=True,
               max_relative_positions=-1, position_biased_input=False, type_vocab_size=0)
T5_GATED = dict(T5, d_ff=2048, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
T5_LARGE = dict(T5, d_model=1024, d_ff=4096, num_layers=24, num_decoder_layers=24, num_heads=16)
MT5_SMALL = dict(model_type="mt5", d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_decoder_layers=8, num_heads=6,
                 vocab_size=250112, feed_forward_proj="gated-gelu", decoder_start_token_id=0,
                 tie_word_embeddings=False)

SECOND = [
    text("llama-58m-fp32", LLAMA_58M, precision="fp32", optimizer="adamw", batch=32, sequence=512),
    text("llama-58m-fused", LLAMA_58M, precision="amp", optimizer="adamw_fused", batch=64, sequence=256),
    text("llama-58m-sgd-long", LLAMA_58M, precision="bf16", optimizer="sgd", batch=16, sequence=2048),
    text("llama-1b", LLAMA_1B, precision="amp", optimizer="adamw", batch=3, sequence=1536),
    text("llama-1b-checkpointed", LLAMA_1B, precision="bf16", optimizer="adamw", batch=6, sequence=2048,
         checkpointing="full"),
    text("llama-1b-fp32-single", LLAMA_1B, precision="fp32", optimizer="adamw_single", batch=2, sequence=640),
    text("llama-1b-accumulating", LLAMA_1B, precision="amp", optimizer="adamw", batch=2, sequence=2048,
         accumulation=8, checkpointing="full"),
    text("llama-1b-chunked-loss", LLAMA_1B, precision="bf16", optimizer="adamw", batch=8, sequence=1024,
         lossChunk=2048),
    text("llama-1b-expandable", LLAMA_1B, precision="amp", optimizer="adamw", batch=4, sequence=1024,
         expandableSegments=True),
    text("mistral-1.4b-long", MISTRAL, precision="bf16", optimizer="adamw_fused", batch=2, sequence=3072),
    text("mistral-1.4b-momentum", MISTRAL, precision="amp", optimizer="sgd_momentum", batch=12, sequence=384),
    text("mistral-1.4b-8bit", MISTRAL, precision="bf16", optimizer="adamw_8bit", batch=4, sequence=1024),
    text("qwen2-1.3b", QWEN2, precision="amp", optimizer="adamw", batch=6, sequence=768),
    text("qwen2-1.3b-adafactor", QWEN2, precision="bf16", optimizer="adafactor", batch=4, sequence=1024),
    text("qwen3-4b", QWEN3_4B, precision="bf16", optimizer="adamw", batch=1, sequence=2048),
    text("qwen3-4b-long", QWEN3_4B, precision="bf16", optimizer="sgd_momentum", batch=2, sequence=4096,
         checkpointing="full"),
    text("gemma2-2b-checkpointed", GEMMA2, precision="bf16", optimizer="adamw", batch=2, sequence=1024,
         checkpointing="full"),
    text("gemma2-2b-sgd", GEMMA2, precision="amp", optimizer="sgd", batch=1, sequence=768),
    text("gpt2-82m", GPT2_82M, precision="amp", optimizer="adamw", batch=24, sequence=1024),
    text("gpt2-82m-eager", GPT2_82M, precision="fp32", optimizer="sgd_momentum", batch=12, sequence=512,
         attention="eager"),
    text("gpt2-82m-8bit", GPT2_82M, precision="amp", optimizer="adamw_8bit", batch=16, sequence=512),
    text("gpt2-760m-bf16", GPT2_760M, precision="bf16", optimizer="adamw", batch=8, sequence=768),
    text("gpt2-760m-adafactor", GPT2_760M, precision="amp", optimizer="adafactor", batch=16, sequence=1024,
         checkpointing="full"),
    text("gpt2-760m-compiled", GPT2_760M, precision="amp", optimizer="adamw", batch=4, sequence=1024, compile=True),
    text("opt-125m-fp32", OPT_125M, precision="fp32", optimizer="adamw", batch=16, sequence=1024),
    text("opt-650m-single", OPT_650M, precision="bf16", optimizer="adamw_single", batch=6, sequence=1536),
    text("opt-650m-accumulating", OPT_650M, precision="amp", optimizer="adamw", batch=4, sequence=512,
         accumulation=4),
    text("opt-650m-expandable", OPT_650M, precision="bf16", optimizer="adamw", batch=8, sequence=1024,
         checkpointing="full", expandableSegments=True),
    text("bloom-560m", BLOOM_560M, precision="amp", optimizer="adamw", batch=4, sequence=512),
    text("bloom-1.1b-checkpointed", BLOOM_1B, precision="bf16", optimizer="sgd_momentum", batch=2, sequence=1024,
         checkpointing="full"),
    text("gpt-neo-125m", GPT_NEO, precision="amp", optimizer="adamw", batch=16, sequence=512),
    text("gpt-j-small", GPT_J, precision="bf16", optimizer="adamw", batch=8, sequence=1024),
    text("codegen-unfamiliar", CODEGEN, precision="amp", optimizer="adamw", batch=4, sequence=1024),
    text("bigcode-1b", BIGCODE, precision="bf16", optimizer="adamw_fused", batch=4, sequence=2048),
    text("pythia-160m-fused", PYTHIA_160M, precision="amp", optimizer="adamw_fused", batch=32, sequence=1024),
    text("pythia-1.4b-checkpointed", PYTHIA_1_4B, precision="bf16", optimizer="adamw", batch=4, sequence=2048,
         checkpointing="full"),
    text("pythia-1.4b-fp32-sgd", PYTHIA_1_4B, precision="fp32", optimizer="sgd", batch=2, sequence=512),
    text("falcon-rw-1b", FALCON_RW, precision="bf16", optimizer="adamw", batch=4, sequence=768),
    text("phi-750m", PHI, precision="amp", optimizer="adamw", batch=8, sequence=512),
    text("phi-3-mini-adafactor", PHI3, precision="bf16", optimizer="adafactor", batch=2, sequence=2048,
         checkpointing="full"),
    text("phi-3-mini", PHI3, precision="bf16", optimizer="adamw", batch=1, sequence=1024),
    text("granite-2b", GRANITE, precision="bf16", optimizer="adamw", batch=2, sequence=2048),
    text("granite-2b-momentum", GRANITE, precision="amp", optimizer="sgd_momentum", batch=1, sequence=1024),
    text("olmo2-1b", OLMO2, precision="amp", optimizer="adamw", batch=2, sequence=1024),
    text("olmo2-1b-fused", OLMO2, precision="bf16", optimizer="adamw_fused", batch=8, sequence=1024),
    text("cohere-900m", COHERE, precision="bf16", optimizer="adamw", batch=4, sequence=1024),
    text("mixtral-8x2", MIXTRAL, precision="amp", optimizer="adamw", batch=4, sequence=1024),
    text("qwen2-experts-shared", QWEN2_MOE, precision="bf16", optimizer="adamw", batch=4, sequence=512),
    text("llama-6b-checkpointed", LLAMA_6B, precision="bf16", optimizer="adamw", batch=2, sequence=2048,
         checkpointing="full"),
    text("llama-6b-sgd", LLAMA_6B, precision="bf16", optimizer="sgd", batch=4, sequence=1024),
    text("olmo-7b-adafactor", OLMO_7B, precision="bf16", optimizer="adafactor", batch=1, sequence=4096,
         checkpointing="full"),
    text("bert-medium-wide-batch", BERT_MEDIUM, precision="amp", optimizer="adamw", batch=128, sequence=128),
    text("bert-medium-fp32", BERT_MEDIUM, precision="fp32", optimizer="sgd_momentum", batch=16, sequence=512),
    text("distilbert-bf16", DISTILBERT, precision="bf16", optimizer="adamw", batch=64, sequence=256),
    text("xlm-roberta-base", XLM_ROBERTA, precision="amp", optimizer="adamw_fused", batch=16, sequence=256),
    text("deberta-v3-base", DEBERTA, precision="amp", optimizer="adamw", batch=8, sequence=256),
    text("flan-t5-base", T5_GATED, precision="bf16", optimizer="adamw", batch=16, sequence=512),
    text("t5-large", T5_LARGE, precision="amp", optimizer="adamw_single", batch=4, sequence=512),
    text("mt5-small-adafactor", MT5_SMALL, precision="amp", optimizer="adafactor", batch=8, sequence=256),
    text("llama-6b-lora-all", LLAMA_6B, method="lora", precision="amp", optimizer="adamw", batch=2, sequence=2048,
         loraRank=64, loraTargets="all", checkpointing="full"),
    text("olmo-7b-lora", OLMO_7B, method="lora", precision="amp", optimizer="adamw", batch=1, sequence=2048,
         loraRank=8, loraTargets="attention"),
    text("qwen3-4b-lora-q-v", QWEN3_4B, method="lora", precision="bf16", optimizer="adamw", batch=4, sequence=512,
         loraRank=16, loraTargets="some"),
    text("granite-2b-lora-all", GRANITE, method="lora", precision="amp", optimizer="adamw", batch=8, sequence=512,
         loraRank=32, loraTargets="all"),
    text("qwen2-1.3b-lora-fp32-base", QWEN2, method="lora", precision="amp", weights="fp32", optimizer="adamw",
         batch=4, sequence=1024, loraRank=128, loraTargets="all"),
    text("mistral-1.4b-lora", MISTRAL, method="lora", precision="bf16", optimizer="adamw_fused", batch=16,
         sequence=512, loraRank=16, loraTargets="attention"),
    text("gemma2-2b-lora", GEMMA2, method="lora", precision="amp", optimizer="adamw", batch=4, sequence=1024,
         loraRank=8, loraTargets="attention", checkpointing="full"),
    text("olmo-7b-generate", OLMO_7B, task="generate", precision="bf16", batch=4, sequence=1024, newTokens=32),
    text("qwen3-4b-generate", QWEN3_4B, task="generate", precision="bf16", batch=16, sequence=512, newTokens=64),
    text("granite-2b-generate-fp32", GRANITE, task="generate", precision="fp32", batch=4, sequence=256, newTokens=32),
    text("gpt2-760m-generate", GPT2_760M, task="generate", precision="fp32", batch=32, sequence=128, newTokens=64),
    text("llama-58m-generate", LLAMA_58M, task="generate", precision="bf16", batch=64, sequence=1024, newTokens=16),
    text("phi-3-mini-forward", PHI3, task="generate", precision="bf16", batch=2, sequence=4096, newTokens=0),
    text("opt-650m-forward-eager", OPT_650M, task="generate", precision="fp32", batch=4, sequence=1024, newTokens=0,
         attention="eager"),
    image("resnet101", "resnet101", precision="amp", optimizer="adamw", batch=96),
    image("regnet-larger-images", "regnet_y_8gf", precision="fp32", optimizer="sgd_momentum", batch=48, imageSize=288),
    image("swin-t", "swin_t", precision="amp", optimizer="adamw", batch=64),
    image("convnext-tiny-wide-batch", "convnext_tiny", precision="amp", optimizer="adamw", batch=160),
    image("vit-b-16-fp32", "vit_b_16", precision="fp32", optimizer="sgd_momentum", batch=96),
    image("densenet-larger-images", "densenet121", precision="amp", optimizer="sgd_momentum", batch=48, imageSize=320),
    image("resnet18-smaller-images", "resnet18", precision="fp32", optimizer="adamw_fused", batch=256, imageSize=160),
    image("resnet50-infer-larger", "resnet50", task="generate", precision="fp32", batch=128, imageSize=320),
]

SETS = dict(first=FIRST, second=SECOND)
