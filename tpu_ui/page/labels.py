"""The page's fixed labels in English and Portuguese, chosen in the browser; sentences follow them."""

import gradio as gr

from tpu_ui.translations import Language, chosen_by

_TEXTS: dict[str, tuple[str, str]] = {
    "generate": ("Generate", "Gerar"),
    "cancel": ("Cancel", "Cancelar"),
    "prompt": ("Prompt", "Prompt"),
    "prompt_hint": ("What the picture shows. Ctrl+Enter generates.", "O que a imagem mostra. Ctrl+Enter gera."),
    "negative": ("Negative prompt", "Prompt negativo"),
    "negative_hint": ("What it should not show", "O que não deve aparecer"),
    "model": ("Model", "Modelo"),
    "mode": ("Execution mode", "Modo de execução"),
    "placement": ("Placement", "Posicionamento"),
    "sizes": ("Size", "Tamanho"),
    "width": ("Width", "Largura"),
    "height": ("Height", "Altura"),
    "steps": ("Steps", "Passos"),
    "guidance": ("Guidance", "Orientação"),
    "seed": ("Seed", "Semente"),
    "seed_hint": ("empty: random", "vazio: aleatória"),
    "batch": ("Pictures", "Imagens"),
    "advanced": ("Advanced", "Avançado"),
    "loras": ("LoRAs, one a line", "LoRAs, um por linha"),
    "loras_hint": ("name:weight", "nome:peso"),
    "from_picture": ("Start from a picture", "Partir de uma imagem"),
    "picture": ("PNG, JPEG or WebP", "PNG, JPEG ou WebP"),
    "strength": ("Strength", "Intensidade"),
    "strength_hint": ("1: nothing of it stays", "1: nada dela fica"),
    "pictures": ("Pictures", "Imagens"),
    "live_preview": ("Live preview", "Prévia ao vivo"),
    "reuse_seed": ("Reuse its seed", "Reusar a semente"),
    "use_settings": ("Use these settings", "Usar estes ajustes"),
    "report": ("Report", "Relatório"),
    "tab_generate": ("Generate", "Gerar"),
    "tab_warmup": ("Warm-up", "Aquecimento"),
    "tab_history": ("History", "Histórico"),
    "tab_png": ("PNG", "PNG"),
    "tab_system": ("System", "Sistema"),
    "warm_sizes": ("Sizes to warm up", "Tamanhos a aquecer"),
    "warm": ("Warm up", "Aquecer"),
    "cancel_warm": ("Cancel warm-up", "Cancelar aquecimento"),
    "refresh": ("Refresh", "Atualizar"),
    "prune": ("Prune the cache", "Limpar o cache"),
    "keep_gb": ("Keep at most (GB)", "Manter no máximo (GB)"),
    "search": ("Search in prompts", "Buscar nos prompts"),
    "older": ("Older pictures", "Imagens mais antigas"),
    "delete": ("Delete the picture", "Excluir a imagem"),
    "png_drop": ("A picture made here or elsewhere", "Uma imagem feita aqui ou em outro lugar"),
    "parameters": ("Parameters", "Parâmetros"),
}


def language_of(request: gr.Request) -> Language:
    """The language of a page's sentences: that of its labels."""
    return chosen_by(request.headers.get("accept-language"))


def translations() -> gr.I18n:
    english = {key: texts[0] for key, texts in _TEXTS.items()}
    portuguese = {key: texts[1] for key, texts in _TEXTS.items()}
    return gr.I18n(en=english, pt=portuguese, **{"pt-BR": portuguese})
