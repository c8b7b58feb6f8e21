#!/usr/bin/env python3
"""Chats as transformers' apply_chat_template writes them, and as Spillway does: tests/peer/transformers/check_chats.py --tests TESTS_TEXT

Eight templates, written for this, are rendered by transformers for 200 random chats, with the spans that their {% generation %}
blocks mark. Spillway must write the same texts and mark the same spans three ways: by the template, by the template without these
blocks (spans are then found by rendering parts of the chat), and by the built-in template of the same name where there is one. The
tokens must be those of a small byte-level BPE, cut where training begins and ends, with names in messages letter by letter.

    check_chats.py --write tests/reference/chats.json     the reference of the tests that are always run: 12 of the chats

Exit code 77: skipped, with the reason: transformers is missing. SPILLWAY_TRANSFORMERS names another python3 that has it.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

DATE = datetime.datetime(2024, 7, 26)
NAMES = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
TURNS = ("{%- if messages[0].role == 'system' %}{% set turns = messages[1:] %}{% else %}{% set turns = messages %}{% endif %}"
         "{%- for m in turns %}{% if m.role != ('user' if loop.index0 % 2 == 0 else 'assistant') %}"
         "{{ raise_exception('user and assistant must take turns') }}{% endif %}{% endfor %}")
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m.role == 'assistant' %}"
          "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}"
          "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
TEMPLATES = {
    "chatml": CHATML,
    "qwen": "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. "
            "You are a helpful assistant.<|im_end|>\\n' }}{% endif %}" + CHATML,
    "llama3": "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' }}"
              "{% if m.role == 'assistant' %}{% generation %}{{ m['content'] | trim }}<|eot_id|>{% endgeneration %}"
              "{% else %}{{ m['content'] | trim }}<|eot_id|>{% endif %}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    "mistral": TURNS + "{{ bos_token }}{% for m in turns %}{% if m.role == 'user' %}[INST] "
               "{%+ if loop.first and messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}"
               "{{ m.content }}[/INST]{% else %}{% generation %}{{ ' ' + m.content | trim + eos_token }}{% endgeneration %}"
               "{% endif %}{% endfor %}",
    "alpaca": TURNS + "{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}Below is an "
              "instruction that describes a task. Write a response that appropriately completes the request.{% endif %}"
              "{% for m in turns %}{% if m.role == 'user' %}{{ '\\n\\n### Instruction:\\n' + m.content + '\\n\\n### Response:\\n' }}"
              "{% else %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% endif %}{% endfor %}",
    # A date, tools, and a macro.
    "dated": """{%- macro head(role) %}<|start_header_id|>{{ role }}<|end_header_id|>{{ '\\n\\n' }}{% endmacro -%}
{{- bos_token }}{{ head('system') }}Today Date: {{ strftime_now('%d %b %Y') }}
{% if tools is not none %}
Tools:
    {% for tool in tools %}
{{ tool | tojson(indent=4) }}
    {% endfor %}
{% endif %}<|eot_id|>
{%- for m in messages %}
{{- head(m.role) }}{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim }}<|eot_id|>{% endgeneration %}{% else %}
{{- m.content | trim ~ '<|eot_id|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif %}""",
    # Thoughts are kept in the last turn only.
    "thinking": """{%- set last = namespace(user=-1) %}
{%- for m in messages[::-1] %}
    {%- if m.role == 'user' %}{% set last.user = messages | length - 1 - loop.index0 %}{% break %}{% endif %}
{%- endfor %}
{%- for m in messages %}
{{- '<|im_start|>' ~ m.role ~ '\\n' }}
    {%- if m.role == 'assistant' %}
        {%- generation %}
        {%- set parts = m.content.split('</think>') %}
        {%- if loop.index0 > last.user %}{{ '<think>\\n' ~ (m.reasoning_content or '') | trim ~ '\\n</think>\\n\\n' }}{% endif %}
        {{- parts[-1].strip('\\n') ~ '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- m.content ~ '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    # JSON of messages, filters, and blanks that the template controls.
    "filters": """{% for m in messages %}
  {% if m.role == 'system' %}
    {% continue %}
  {% endif %}
{{ loop.index }} {{ m.role | upper }}: {{ {'q': m.role, 'é': [1, none, 2.5]} | tojson }}
  {%- if m.role == 'assistant' %}
{% generation %}{{ m.content | replace('\\n', ' / ') }}{{ eos_token }}{% endgeneration %}

  {% else %}
 {{ m.role | length }} {{ m | tojson }} {{ m.content.split() | join('+') }}
  {% endif %}
{% endfor %}
{% if add_generation_prompt %}->{% endif %}""",
}
BUILT_IN = ["chatml", "qwen", "llama3", "mistral", "alpaca"]


def content(dice):
    pieces = ["hello", "Wörter", "日本語", "😀", "\n", "\n\n", " ", "\t", "\u00a0", "\u3000", "\u2028", "\x1c", "{{ 7 * 7 }}", "{% if %}", "\\",
              '"', "'", "<b>&", "</think>", "<think>", "\U000f0000", "\U000f0001", "CONTINUE", "e\u0301", "a" * 40] + NAMES
    return "".join(dice.choice(pieces) for _ in range(dice.randrange(6)))


def chats(count, seed=1):
    dice = random.Random(seed)
    print(f"seed {seed}")
    result = []
    for _ in range(count):
        messages = [{"role": "system", "content": content(dice)}] if dice.random() < 0.5 else []
        for turn in range(dice.randint(1, 6)):
            message = {"role": "user" if turn % 2 == 0 else "assistant", "content": content(dice)}
            if turn % 2 and dice.random() < 0.3:
                message["reasoning_content"] = content(dice)
            messages.append(message)
        if dice.random() < 0.1:
            messages.insert(dice.randrange(len(messages) + 1), {"role": "user", "content": content(dice)})
        chat = {"messages": messages}
        if dice.random() < 0.3:
            chat["tools"] = [{"type": "function", "function": {"name": content(dice), "parameters": {"é": [1, True, None]}}}]
        result.append(chat)
    return result


def expected(template, tokenizer, chat, render):
    """The text, the text before an answer, and the spans in bytes; a key is missing where transformers refuses."""
    result = {}
    for key, prompt in (("text", False), ("answer", True)):
        try:
            result[key] = tokenizer.apply_chat_template(chat["messages"], tools=chat.get("tools"), chat_template=template, tokenize=False,
                                                        add_generation_prompt=prompt)
        except Exception as error:
            if "take turns" not in str(error):
                raise
    if "text" in result:
        texts, spans = render([chat["messages"]], tools=chat.get("tools"), chat_template=template, return_assistant_tokens_mask=True,
                              **tokenizer.special_tokens_map)
        assert texts == [result["text"]]
        result["trained"] = [[len(texts[0][:edge].encode()) for edge in span] for span in spans[0]]
    return result


def make_tokenizer(tokenizers, path):
    """A byte-level BPE of some hundred merges, with the names as special tokens, as a tokenizer.json."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=800, special_tokens=NAMES, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([pathlib.Path(__file__).read_text()] * 2, trainer)
    tokenizer.save(str(path))
    return tokenizer


def tokens_of(text, spans, names, tokenizer, letters):
    """The tokens of the text, cut where training begins and ends and around names in messages. `names`: spans of these."""
    data, tokens = text.encode(), []
    cuts = sorted({0, len(data), *(edge for span in spans + names for edge in span)})
    for first, end in zip(cuts, cuts[1:]):
        as_letters = any(span[0] <= first < span[1] for span in names)
        tokens += (letters if as_letters else tokenizer).encode(data[first:end].decode(), add_special_tokens=False).ids
    return tokens


def names_in_messages(template, chat, render, text, tokenizer):
    """Spans of the names of special tokens that messages hold, in the bytes of the text: found by writing them otherwise."""
    names = re.compile("|".join(map(re.escape, NAMES)))

    def change(value):
        if isinstance(value, str):
            return names.sub(lambda name: "\ue000" + name.group() + "\ue001", value)
        if isinstance(value, dict):
            return {key: change(one) for key, one in value.items()}
        return [change(one) for one in value] if isinstance(value, list) else value

    [marked], _ = render([change(chat["messages"])], tools=change(chat.get("tools")), chat_template=template,
                         return_assistant_tokens_mask=True, **tokenizer.special_tokens_map)
    spans, length = [], 0
    for piece in re.split("([\ue000\ue001])", marked):
        if piece == "\ue000":
            spans.append([length, length])
        elif piece == "\ue001":
            spans[-1][1] = length
        else:
            length += len(piece.encode())
    assert length == len(text.encode())
    return spans


def add_tokens(cases, tokenizers, tokenizer, render, path):
    """Adds the tokens of each text, and returns of how many chats these are what apply_chat_template makes."""
    bpe = make_tokenizer(tokenizers, path)
    letters = tokenizers.Tokenizer.from_file(str(path))
    letters.encode_special_tokens = True
    same = [0, 0]
    for template in cases["templates"]:
        for chat, one in zip(cases["chats"], template["expected"]):
            if "text" not in one:
                continue
            names = names_in_messages(template["marked"], chat, render, one["text"], tokenizer)
            one["tokens"] = tokens_of(one["text"], one["trained"], names, bpe, letters)
            if not names:
                same[0] += one["tokens"] == bpe.encode(one["text"], add_special_tokens=False).ids
                same[1] += 1
    (path.parent / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    cases["tokenizer"] = str(path.parent)
    return same


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tests")
    parser.add_argument("--write")
    options = parser.parse_args()
    other = os.environ.get("SPILLWAY_TRANSFORMERS")
    if other and not os.environ.get("SPILLWAY_TRANSFORMERS_FOUND"):
        os.environ["SPILLWAY_TRANSFORMERS_FOUND"] = "1"
        os.execv(other, [other, *sys.argv])
    try:
        import tokenizers
        import transformers
        import transformers.utils.chat_template_utils as chat_utils
        import jinja2  # noqa: F401
    except ImportError as error:
        print(f"skipped: {error}; pip install transformers jinja2, or SPILLWAY_TRANSFORMERS=PYTHON")
        return 77

    class Fixed(datetime.datetime):
        @classmethod
        def now(cls, zone=None):
            return DATE

    chat_utils.datetime = Fixed
    model = tokenizers.models.WordLevel({"a": 0}, unk_token="a")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(model), bos_token="<s>", eos_token="</s>")
    cases = {"names": NAMES, "date": DATE.strftime("%Y-%m-%d"), "chats": chats(12 if options.write else 200), "templates": []}
    for name, template in TEMPLATES.items():
        plain = re.sub(r"\{%(-?) (end)?generation (-?)%\}", lambda tag: "{%" + tag[1] + " if true " + tag[3] + "%}"
                       if not tag[2] else "{%" + tag[1] + " endif " + tag[3] + "%}", template)
        if name in BUILT_IN:
            # What goes into the folder of a model that was trained with the built-in template.
            written = (pathlib.Path(__file__).parents[3] / "text/chat/templates" / f"{name}.jinja").read_text()
            for chat in cases["chats"]:
                texts = [{key: text for key, text in expected(one, tokenizer, chat, chat_utils.render_jinja_template).items()
                          if key != "trained"} for one in (template, written)]
                assert texts[0] == texts[1], (name, chat)
        cases["templates"].append({"name": name, "built_in": name in BUILT_IN, "marked": template, "plain": plain, "expected": [
            expected(template, tokenizer, chat, chat_utils.render_jinja_template) for chat in cases["chats"]]})
    text = json.dumps(cases, ensure_ascii=False, indent=0)
    if options.write:
        pathlib.Path(options.write).write_text(text + "\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "chats.json"
        same = add_tokens(cases, tokenizers, tokenizer, chat_utils.render_jinja_template, pathlib.Path(folder) / "tokenizer.json")
        path.write_text(json.dumps(cases))
        print(f"of {same[1]} texts without names of special tokens in messages {same[0]} have the tokens that they have uncut")
        refused = sum("text" not in one for template in cases["templates"] for one in template["expected"])
        print(f"{len(cases['chats'])} chats, {len(TEMPLATES)} templates, {refused} refused by transformers {transformers.__version__}")
        return subprocess.run([options.tests, "[chat_reference]"], env={**os.environ, "SPILLWAY_TEST_CHATS": str(path)}).returncode


if __name__ == "__main__":
    sys.exit(main())
