"""Renders chats by a model's own chat template: python3 -I -c THIS_TEXT, and messages over stdin and stdout.

The template is somebody else's program. It runs in jinja2's immutable sandbox, with bounded memory, without the right to
open or write files, to start programs or to use the network, and is killed where it runs for too long.

A message is its length (4 bytes, little-endian) and JSON in UTF-8. The first one:
  {"template", "variables": {"bos_token": ...}, "names": [names of special tokens], "parse_special": false, "date": "2024-07-26",
   "limits": {...}}
  -> {"ready": true, "generation": whether the template marks what is trained on} | {"error"} | {"missing": why there is no jinja2}
and each one after it:
  {"chats": [{"messages", "tools"}], "prompt": bool, "trained": bool}
  -> {"chats": [{"text", "plain": [[first, end]], "trained": [[first, end]]} | {"error", "unmarked": bool}]}   bytes of the text in UTF-8
"""
import json
import re
import resource
import signal
import struct
import sys
import time


def receive():
    head = sys.stdin.buffer.read(4)
    if len(head) < 4:
        sys.exit(0)
    return json.loads(sys.stdin.buffer.read(struct.unpack("<I", head)[0]))


def send(reply):
    # A lone surrogate in a text has no UTF-8.
    data = json.dumps(reply, ensure_ascii=False).encode("utf-8", "replace")
    sys.stdout.buffer.write(struct.pack("<I", len(data)) + data)
    sys.stdout.buffer.flush()


def give_up_rights(limits):
    """After this the process computes, reads stdin and writes stdout, and nothing else."""
    import ctypes
    import platform

    for kind, limit in ((resource.RLIMIT_AS, limits["memory_bytes"]), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0),
                        (resource.RLIMIT_NOFILE, 3), (resource.RLIMIT_NPROC, 0)):
        resource.setrlimit(kind, (limit, limit))
    # read write close fstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn mremap madvise alarm
    # getpid exit sched_yield futex exit_group clock_gettime clock_nanosleep getrandom setitimer prlimit64 restart_syscall ...
    machines = {
        "x86_64": (0xC000003E, [0, 1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 25, 28, 37, 39, 60, 24, 202, 231, 228, 230, 318, 38, 219, 96,
                                131, 186, 273, 334]),
        "aarch64": (0xC00000B7, [63, 64, 57, 80, 73, 62, 222, 226, 215, 214, 134, 135, 139, 216, 233, 103, 172, 93, 124, 98, 94, 113, 115,
                                 278, 128, 169, 132, 178, 99, 293]),
    }
    if platform.machine() not in machines or sys.maxsize < 2**32:
        return
    architecture, allowed = machines[platform.machine()]
    load, equal, end, fail = 0x20, 0x15, 0x06, 0x00050001  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K, SECCOMP_RET_ERRNO with EPERM
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), (end, 0, 0, fail), (load, 0, 0, 0)]
    program += [(equal, len(allowed) - i, 0, number) for i, number in enumerate(allowed)]
    program += [(end, 0, 0, fail), (end, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *one) for one in program))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None).prctl
    prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    prctl(22, 2, head)  # PR_SET_SECCOMP: refused by kernels without it, which leave the limits above


def compile_template(request):
    """As transformers compiles it (utils/chat_template_utils.py), with a date that does not pass."""
    import jinja2

    class Generation(jinja2.ext.Extension):
        """{% generation %} ... {% endgeneration %}: what is trained on."""
        tags = {"generation"}
        blocks, spans = [], []

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_span"), [], [], body).set_lineno(line)

        @staticmethod
        def _span(caller):
            text = caller()
            first = sum(map(len, Generation.blocks))
            Generation.spans.append((first, first + len(text)))
            return text

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    class Namespace(jinja2.utils.Namespace):
        """Without the attributes that lead to Python's own."""
        def __setitem__(self, name, value):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError("names of a namespace do not begin with _")
            super().__setitem__(name, value)

    date = time.strptime(request["date"], "%Y-%m-%d")
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                               extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: time.strftime(form, date)
    environment.globals["namespace"] = Namespace
    return environment.from_string(request["template"]), Generation


class Renderer:
    def __init__(self, request):
        self.template, self.generation = compile_template(request)
        self.source = request["template"]
        self.marks_training = re.search(r"\{\%-?\s*generation\s*-?\%\}", self.source) is not None
        self.variables = request["variables"]
        self.letters = not request["parse_special"]
        self.limit = request["limits"]["text_characters"]
        names = "|".join(map(re.escape, sorted(request["names"], key=len, reverse=True))) or "(?!)"
        self.names = re.compile(names)

    def render(self, messages, tools, prompt):
        blocks, length = [], 0
        self.generation.blocks, self.generation.spans = blocks, []
        for block in self.template.generate(messages=messages, tools=tools, documents=None, add_generation_prompt=prompt,
                                            **self.variables):
            blocks.append(block)
            length += len(block)
            if length > self.limit:
                raise ValueError(f"its text is longer than {self.limit} characters")
        return "".join(blocks)

    def choose_marks(self, chat):
        """Two characters that nobody uses: what they enclose is a name that somebody wrote into a message."""
        used = self.source + json.dumps(chat, ensure_ascii=False)
        marks = [mark for mark in map(chr, range(0xF0000, 0xF1000)) if mark not in used][:2]
        if len(marks) < 2:
            raise ValueError("the chat is made of private-use characters")
        return marks

    def mark(self, value, marks):
        if isinstance(value, str):
            return self.names.sub(lambda name: marks[0] + name.group() + marks[1], value)
        if isinstance(value, dict):
            return {key: self.mark(one, marks) for key, one in value.items()}
        return [self.mark(one, marks) for one in value] if isinstance(value, list) else value

    def turn_end(self, text, first, end, marks):
        """Where the assistant's turn ends: behind its last special token, where only blanks follow that."""
        last = None
        for name in self.names.finditer(text, first, end):
            if name.start() == 0 or text[name.start() - 1] != marks[0]:
                last = name
        return last.end() if last and not text[last.end():end].strip() else end

    def find_turn(self, messages, tools, index, text, marks):
        """The span of an assistant's message in the whole text, and why there is none."""
        try:
            before = self.render(messages[:index], tools, True)
            upto = self.render(messages[:index + 1], tools, False)
        except Exception as error:  # a template need not take half a chat
            return None, f"the chat cannot be written up to there: {error}"[:500]
        if not text.startswith(before):
            return None, "what stands before the message depends on what comes after it"
        if text.startswith(upto) and upto.startswith(before):
            return (len(before), self.turn_end(text, len(before), len(upto), marks)), None
        # A template that writes older turns otherwise than the last one: the content, and the token that ends the turn.
        content = messages[index].get("content")
        content = content.strip() if isinstance(content, str) else ""
        found = text.find(content, len(before)) if content else -1
        name = self.names.search(text, found + len(content)) if found >= 0 else None
        if name is None or text[found + len(content):name.start()].strip() or self.names.search(text, len(before), found):
            return None, "the message cannot be found again in the text"
        return (len(before), name.end()), None

    def find_training(self, messages, tools, text, marks):
        spans = []
        for index, message in enumerate(messages):
            if message.get("role") == "assistant":
                span, why = self.find_turn(messages, tools, index, text, marks)
                if span is None:
                    return None, f"message {index + 1}: {why}"
                spans.append(span)
        return spans, None

    def answer(self, chat, prompt, trained):
        messages, tools = chat["messages"], chat.get("tools")
        for message in messages:  # reasoning has had several names
            for name in ("reasoning_content", "thinking", "reasoning"):
                if message.get(name) is not None:
                    reasoning = message[name]
                    message.setdefault("thinking", reasoning)
                    message["reasoning_content"] = reasoning
                    break
        marks = self.choose_marks(chat)
        as_written = messages, tools
        if self.letters:
            messages, tools = self.mark(messages, marks), self.mark(tools, marks)
        text = self.render(messages, tools, prompt)
        spans = list(self.generation.spans)
        if (messages, tools) != as_written and without_marks(text, marks, [])["text"] != self.render(*as_written, prompt):
            raise ValueError("names of special tokens in the messages change what the template writes")
        if trained and not self.marks_training:
            spans, why = self.find_training(messages, tools, text, marks)
            if spans is None:
                return {"error": why, "unmarked": True}
        return without_marks(text, marks, spans if trained else [])


def without_marks(text, marks, spans):
    """The text without marks; what they enclose and the spans, as bytes of it."""
    pieces, plain, place = re.split(f"([{marks[0]}{marks[1]}])", text), [], 0
    at, length, opened = 0, 0, None  # characters with marks, bytes without
    wanted = sorted({edge for span in spans for edge in span})
    found, kept = {}, []
    for piece in pieces:
        while place < len(wanted) and wanted[place] <= at + len(piece):
            found[wanted[place]] = length + (len(piece[:wanted[place] - at].encode()) if piece not in marks else 0)
            place += 1
        at += len(piece)
        if piece == marks[0]:
            opened = length
        elif piece == marks[1]:
            if opened is not None and opened < length:
                plain.append([opened, length])
            opened = None
        else:
            kept.append(piece)
            length += len(piece.encode())
    return {"text": "".join(kept), "plain": plain, "trained": [[found[first], found[end]] for first, end in spans]}


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, which then ends this process
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    request = receive()
    signal.alarm(request["limits"]["seconds"])  # where nobody is left to end this process
    try:
        import jinja2.debug  # noqa: F401  all that is loaded later otherwise, when no file can be opened any more
        import jinja2.ext  # noqa: F401
        import jinja2.sandbox  # noqa: F401
        import pprint, textwrap, traceback  # noqa: F401,E401  what filters load
    except ImportError as error:
        send({"missing": str(error)})
        return
    try:
        time.strptime("2024-07-26", "%Y-%m-%d")  # loads a module
        "\\n".encode().decode("unicode-escape")  # loads another
        time.strftime("%d %b %Y")  # reads the time zone
        give_up_rights(request["limits"])
        renderer = Renderer(request)
    except Exception as error:  # the template is wrong, whatever the way
        send({"error": f"{type(error).__name__}: {error}"[:1000]})
        return
    send({"ready": True, "generation": renderer.marks_training})
    while True:
        signal.alarm(0)
        batch = receive()
        signal.alarm(request["limits"]["seconds"])
        replies = []
        for chat in batch["chats"]:
            try:
                replies.append(renderer.answer(chat, batch["prompt"], batch["trained"]))
            except MemoryError:
                replies.append({"error": "it needs more memory than it may have", "unmarked": False})
            except Exception as error:  # so is it here
                name = type(error).__name__
                replies.append({"error": f"{error}"[:1000] if name == "TemplateError" else f"{name}: {error}"[:1000],
                                "unmarked": False})
        send({"chats": replies})


main()
