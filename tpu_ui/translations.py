"""The page's sentences in other languages: templates by their English form, and how a language writes numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Language:
    """Calling it with an English template and its values gives the sentence in this language."""

    code: str
    templates: Mapping[str, str] = field(default_factory=dict, repr=False)
    has_decimal_comma: bool = False

    def __call__(self, template: str, /, **values: object) -> str:
        return self.templates.get(template, template).format(**values)

    def counted(self, number: int, one: str, many: str, **values: object) -> str:
        """The template for one or that for many; `{number}` stands for the number in both."""
        return self(one if number == 1 else many, number=self.number(number), **values)

    def number(self, value: float, digits: int = 0) -> str:
        """A number with so many digits after the decimal sign, its thousands apart."""
        text = f"{value:,.{digits}f}"
        return text.translate(_COMMA_FOR_POINT) if self.has_decimal_comma else text


def marked(template: str) -> str:
    """Marks a template that stands in a table and is translated where it is used."""
    return template


_COMMA_FOR_POINT = str.maketrans(",.", ".,")

ENGLISH = Language("en")

PORTUGUESE = Language(
    "pt",
    {
        # states and phases
        "Warm": "Aquecido",
        "On disk": "No disco",
        "Compiling now": "Compilando agora",
        "Cold": "Frio",
        "Failed the last time": "Falhou da última vez",
        "Starting": "Iniciando",
        "Not downloaded": "Não baixado",
        "Cannot run": "Não pode ser executado",
        "warm": "aquecido",
        "on disk": "no disco",
        "compiling": "compilando",
        "cold": "frio",
        "failed": "falhou",
        "other versions": "outras versões",
        "Waiting in the queue": "Aguardando na fila",
        "Downloading the model": "Baixando o modelo",
        "file {file} of {files}": "arquivo {file} de {files}",
        "Loading the model": "Carregando o modelo",
        "Placing the model on the device": "Colocando o modelo no dispositivo",
        "Compiling": "Compilando",
        "Reading the prompt": "Lendo o prompt",
        "Denoising": "Removendo o ruído",
        "Decoding the picture": "Decodificando a imagem",
        "Checking that nothing is left to compile": "Verificando que nada resta a compilar",
        "Finishing": "Finalizando",
        # amounts
        "not known yet": "ainda não se sabe",
        "{number} graph": "{number} grafo",
        "{number} graphs": "{number} grafos",
        "{number} picture": "{number} imagem",
        "{number} pictures": "{number} imagens",
        # the verdict
        "Nothing is left to compile. How long it takes is not known yet.": (
            "Nada resta a compilar. Quanto tempo leva ainda não se sabe."
        ),
        "About {run}{source}.": "Cerca de {run}{source}.",
        " (from {number} run)": " (por {number} execução)",
        " (from {number} runs)": " (por {number} execuções)",
        " (from like sizes)": " (por tamanhos parecidos)",
        "Its graphs are read from disk first. How long that takes is not known yet.": (
            "Primeiro os grafos são lidos do disco. Quanto tempo isso leva ainda não se sabe."
        ),
        "Its graphs are read from disk first, then about {run}. How long that takes is not known yet.": (
            "Primeiro os grafos são lidos do disco, depois cerca de {run}. Quanto tempo isso leva ainda não se sabe."
        ),
        "About {reading} to read its graphs.": "Cerca de {reading} para ler os grafos.",
        "About {reading} to read its graphs, then {run}.": "Cerca de {reading} para ler os grafos, depois {run}.",
        "The last try to compile this failed.": "A última tentativa de compilar isto falhou.",
        "It is being compiled now{expected}.": "Está sendo compilado agora{expected}.",
        "Compiles first. How long that takes is not known yet.": (
            "Compila primeiro. Quanto tempo isso leva ainda não se sabe."
        ),
        "Compiles first{expected}.": "Compila primeiro{expected}.",
        ": about {warmup}{graphs}{source}{then}": ": cerca de {warmup}{graphs}{source}{then}",
        ", then {run}": ", depois {run}",
        "It is downloaded first; how long that takes is not known yet.": (
            "Ele é baixado primeiro; quanto tempo isso leva ainda não se sabe."
        ),
        "The Hub asks for a login and for its licence to be accepted.": (
            "O Hub pede um login e que a licença seja aceita."
        ),
        "Use {size}, the nearest warm size": "Usar {size}, o tamanho aquecido mais próximo",
        "This size is warm": "Este tamanho está aquecido",
        "No other size is warm yet": "Nenhum outro tamanho está aquecido ainda",
        # progress
        "{done} of {total}": "{done} de {total}",
        "{graphs} graphs · {elapsed} so far": "{graphs} grafos · {elapsed} até agora",
        "{graphs} graph · {elapsed} so far": "{graphs} grafo · {elapsed} até agora",
        "step {step} of {steps}": "passo {step} de {steps}",
        "{seconds} a step": "{seconds} por passo",
        "{seconds} left": "faltam {seconds}",
        "{elapsed} so far": "{elapsed} até agora",
        "next in the queue": "próximo da fila",
        "about {wait} to wait": "cerca de {wait} de espera",
        "wait not known yet": "espera ainda não conhecida",
        "{number} job before this one": "{number} trabalho antes deste",
        "{number} jobs before this one": "{number} trabalhos antes deste",
        "{number} more job of yours in the queue": "mais {number} trabalho seu na fila",
        "{number} more jobs of yours in the queue": "mais {number} trabalhos seus na fila",
        "Progress": "Progresso",
        "Ready": "Pronto",
        "{device} is ready": "{device} está pronto",
        "Starting the device": "Iniciando o dispositivo",
        "The device could not be started": "O dispositivo não pôde ser iniciado",
        "The device ({device}) is starting: torch is loading, {elapsed} so far.": (
            "O dispositivo ({device}) está iniciando: o torch está sendo carregado, {elapsed} até agora."
        ),
        "The job runs as soon as it is ready.": "O trabalho começa assim que ele estiver pronto.",
        "A running compile cannot be stopped; the job ends when this compile ends.": (
            "Uma compilação em curso não pode ser interrompida; o trabalho termina quando ela terminar."
        ),
        "The job ends after the step that is running.": "O trabalho termina depois do passo em curso.",
        # the end
        "Done": "Concluído",
        "Failed": "Falhou",
        "Cancelled": "Cancelado",
        "Nothing was saved.": "Nada foi salvo.",
        "The program was restarted, and the job was lost": "O programa foi reiniciado, e o trabalho se perdeu",
        "If its pictures are not in the history, generate again: the settings are still in the form.": (
            "Se as imagens não estiverem no histórico, gere de novo: os ajustes ainda estão no formulário."
        ),
        "{graphs} compiled in {seconds}.": "Compilação de {graphs} em {seconds}.",
        "{pictures} in {total}; {graphs} compiled in {compile}.": (
            "{pictures} em {total}; compilação de {graphs} em {compile}."
        ),
        "{pictures} in {total}, warm as promised: nothing was compiled.": (
            "{pictures} em {total}, aquecido como prometido: nada foi compilado."
        ),
        "{pictures} in {total}; graphs came from disk, nothing was compiled.": (
            "{pictures} em {total}; os grafos vieram do disco, nada foi compilado."
        ),
        "{pictures} in {total}; nothing was compiled.": "{pictures} em {total}; nada foi compilado.",
        "seed {seed}": "semente {seed}",
        # the report
        "No picture yet.": "Nenhuma imagem ainda.",
        "Preview of the picture as it forms": "Prévia da imagem que se forma",
        "Before the run": "Antes da execução",
        "Graphs compiled": "Grafos compilados",
        "Why it compiled": "Por que compilou",
        "Time": "Tempo",
        "load": "carga",
        "compile": "compilação",
        "encode": "codificação",
        "denoise": "remoção do ruído",
        "decode": "decodificação",
        "A step": "Um passo",
        "Most memory in use": "Máximo de memória em uso",
        "Ran as": "Executado como",
        "{mode}, {placement}, on {device}": "{mode}, {placement}, em {device}",
        "Note": "Nota",
        # what can be chosen
        "Strict eager": "Eager estrito",
        "Fused eager": "Eager fundido",
        "Compiled": "Compilado",
        "Auto": "Automático",
        "One chip": "Um chip",
        "CPU offload": "Offload para a CPU",
        "Demo (bundled, tiny)": "Demo (incluído, minúsculo)",
        # the Warm-up tab
        "State": "Estado",
        "Model": "Modelo",
        "Size": "Tamanho",
        "Pictures": "Imagens",
        "Mode": "Modo",
        "Placement": "Posicionamento",
        "Graphs": "Grafos",
        "Compiled in": "Compilado em",
        "Last used": "Último uso",
        "no guidance": "sem orientação",
        "{duration} ago": "há {duration}",
        "never": "nunca",
        "The device is starting; the ledger is read as soon as it is ready.": (
            "O dispositivo está iniciando; o registro é lido assim que ele estiver pronto."
        ),
        "Nothing has been compiled on this machine yet. The first picture of a size compiles it.": (
            "Nada foi compilado nesta máquina ainda. A primeira imagem de um tamanho o compila."
        ),
        "Compiled graphs on disk: {used} of {budget}.": "Grafos compilados no disco: {used} de {budget}.",
        "{number} file removed, {bytes} came free.": "{number} arquivo removido, {bytes} liberados.",
        "{number} files removed, {bytes} came free.": "{number} arquivos removidos, {bytes} liberados.",
        # History and PNG
        "Choose a picture to see its settings.": "Escolha uma imagem para ver os seus ajustes.",
        "This picture is gone: it was deleted elsewhere.": "Esta imagem não existe mais: foi excluída em outro lugar.",
        "Drop a picture to see how it was made.": "Solte uma imagem para ver como foi feita.",
        "No settings are in this picture.": "Não há ajustes nesta imagem.",
        "Its model is not on this server's list; the model in the form stays as it is.": (
            "O modelo dela não está na lista deste servidor; o do formulário fica como está."
        ),
        "made": "feita em",
        "written by": "escrita por",
        "as written": "como está escrito",
        "note": "nota",
        "prompt": "prompt",
        "negative prompt": "prompt negativo",
        "model": "modelo",
        "mode": "modo",
        "placement": "posicionamento",
        "width": "largura",
        "height": "altura",
        "steps": "passos",
        "guidance": "orientação",
        "seed": "semente",
        "batch": "imagens",
        "LoRAs": "LoRAs",
        "strength": "intensidade",
        "Its mode does not exist on this device; the mode in the form stays as it is.": (
            "O modo dela não existe neste dispositivo; o modo do formulário fica como está."
        ),
        "started from (SHA-256)": "partiu de (SHA-256)",
        "It started from a picture (SHA-256 {digest}…), which has to be given again.": (
            "Partiu de uma imagem (SHA-256 {digest}…), que precisa ser enviada de novo."
        ),
        "from a picture": "de uma imagem",
        "From a picture": "De uma imagem",
        "strength {strength}, SHA-256 {digest}…": "intensidade {strength}, SHA-256 {digest}…",
        # the System tab
        "Metrics for Prometheus": "Métricas para o Prometheus",
        "Device": "Dispositivo",
        "Up for": "No ar há",
        "Jobs that wait": "Trabalhos na fila",
        "Open pages": "Páginas abertas",
        "could not be started. {error}": "não pôde ser iniciado. {error}",
        "starting: torch is loading": "iniciando: o torch está sendo carregado",
        "ready": "pronto",
        "Memory": "Memória",
        "Warm-up promises": "Promessas de aquecimento",
        "{kept} kept, {broken} broken": "{kept} cumpridas, {broken} quebradas",
        "Replica {number}": "Réplica {number}",
        "starting": "iniciando",
        "idle": "livre",
        "running": "em execução",
        "lost": "perdida",
        "process {pid} on {node}": "processo {pid} em {node}",
        "{number} job done": "{number} trabalho feito",
        "{number} jobs done": "{number} trabalhos feitos",
        "Its replica was lost; it runs again.": "A réplica dele se perdeu; ele será executado de novo.",
        "chip": "chip",
        "chips": "chips",
        "devices per chip": "dispositivos por chip",
        "memory per chip": "memória por chip",
        "bf16 peak per chip (FLOP/s)": "pico em bf16 por chip (FLOP/s)",
        "source": "fonte",
        "CPU cores": "núcleos da CPU",
        "host memory": "memória da máquina",
        "emulated TPU": "TPU emulada",
        "compile cache": "cache de compilação",
        "compile cache size": "tamanho do cache de compilação",
        "compile cache budget": "limite do cache de compilação",
        "available": "disponível",
        "not installed": "não instalado",
        "loaded": "carregado",
        "not loaded. Install libtcmalloc-minimal4 (Debian and Ubuntu), then start with LD_PRELOAD.": (
            "não carregado. Instale libtcmalloc-minimal4 (Debian e Ubuntu) e inicie com LD_PRELOAD."
        ),
        "not loaded. Start with: LD_PRELOAD={library} python app.py": (
            "não carregado. Inicie com: LD_PRELOAD={library} python app.py"
        ),
        "asked for": "pedido",
        "asked for: TorchTPU on XLA's CPU plugin": "pedido: TorchTPU no plugin de CPU do XLA",
        "no TPU on the PCI bus; NVIDIA's driver is there": "nenhuma TPU no barramento PCI; há o driver da NVIDIA",
        "no TPU on the PCI bus and no NVIDIA driver": "nenhuma TPU no barramento PCI e nenhum driver da NVIDIA",
        "{chips} TPU {chip} chip(s) on the PCI bus": "{chips} chip(s) TPU {chip} no barramento PCI",
        # refusals by the page itself
        "This page has no session yet. Reload it.": "Esta página ainda não tem sessão. Recarregue-a.",
        "Choose one size or more.": "Escolha um tamanho ou mais.",
        "Only the user of this machine may prune its cache.": "Só o usuário desta máquina pode limpar o cache.",
        "The device is starting; try again in a moment.": "O dispositivo está iniciando; tente de novo em instantes.",
        "Give a number of gigabytes, 0 or more.": "Informe um número de gigabytes, 0 ou mais.",
    },
    has_decimal_comma=True,
)


def chosen_by(accept_language: str | None) -> Language:
    """The language of a browser by the Accept-Language of its request: only the first choice counts.

    Gradio translates the labels in the browser, by navigator.language; that is the first of this list.
    """
    first = max((accept_language or "").split(","), key=_weight)
    return PORTUGUESE if first.split(";")[0].strip().lower().split("-")[0] == PORTUGUESE.code else ENGLISH


def _weight(choice: str) -> float:
    _, _, weight = choice.partition(";q=")
    try:
        return float(weight or 1)
    except ValueError:
        return 0.0
