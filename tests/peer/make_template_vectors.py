"""Renders the templates of src/tutti/jinja/testdata by jinja2 and writes vectors.json beside them, so that the plain
tests need no Python. Stands on jinja2 alone.

    make_template_vectors.py FOLDER
"""

import datetime
import json
import pathlib
import sys

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather of a <place> & \"day\".",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "A city, é"},
        "days": {"type": "array", "items": {"type": "integer"}, "description": "Which days", "default": [1, 2.5, None, True]}},
        "required": ["place"]}}}
CALL = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": {"place": "Köln", "days": [1, 2]}}}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "{\"degrees\": 7.5}"}
PROMPT = {"add_generation_prompt": True, "tools": None, "documents": None}
WHOLE = {**PROMPT, "add_generation_prompt": False}

CONVERSATIONS = {
    "question": {"messages": [user("Hi")], **PROMPT},
    "answer": {"messages": [user("Hi"), assistant("Hello there.")], **WHOLE},
    "turns": {"messages": [user("Hi"), assistant("Hello."), user("More?"), assistant("No."), user("So?")], **PROMPT},
    "system": {"messages": [system("Be kind."), user("Hi"), assistant("Hello."), user("More?")], **PROMPT},
    "thinking": {"messages": [user("2+2?"), assistant("<think>\nadd\n</think>\n\n4"), user("3+3?"),
                              assistant("<think>\nadd\n</think>\n\n6")], **WHOLE},
    "reasoning": {"messages": [user("2+2?"), assistant("4", reasoning_content="add them"), user("3+3?")], **PROMPT},
    "no thinking": {"messages": [system("Be brief."), user("2+2?")], **PROMPT, "enable_thinking": False},
    "space": {"messages": [user(" \n Hi\t"), assistant("  Hello. \n"), user("x"), assistant(" y ")], **WHOLE},
    "languages": {"messages": [system("Être"), user("你好 👩‍👩‍👧 <|im_end|> {{ x }}"), assistant("ёж \"quoted\" \\n 'it''s' </s>"),
                               user("مرحبا\u00a0\u2028")], **PROMPT},
    "tools": {"messages": [system("Use tools."), user("Weather?"), assistant("", tool_calls=[CALL]), RESULT,
                           assistant("It is cold."), user("Thanks")], **PROMPT, "tools": [WEATHER]},
    "calls": {"messages": [user("Weather?"), {"role": "assistant", "tool_calls": [CALL]}, RESULT], **PROMPT,
              "tools": [WEATHER]},
    "wrong order": {"messages": [assistant("First."), user("Hi"), user("Again"), {"role": "nobody", "content": "?"}], **WHOLE},
}

EXPRESSIONS = [
    # numbers, as Python prints and divides them
    "{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }}",
    "{{ 1.0 }} {{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1.5e300 }} {{ 0.1 + 0.2 }} {{ 1_000 }} {{ -0.0 }} {{ 5.0 // 2 }}",
    "{{ -5 | abs }} {{ - 5 }} {{ +5 }} {{ true + 1 }} {{ 3 * 'ab' }} {{ [1, 2] * 2 }} {{ -7.5 % 2 }} {{ 7.5 % -2 }}",
    "{{ '12' | int }} {{ ' 7 ' | int }} {{ 'x' | int }} {{ 'x' | int(3) }} {{ '2.9' | int }} {{ '2.5' | float }} {{ 3 | float }}",
    "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ none + 'a' }}", "{{ [] + () }}", "{{ x + 'a' }}", "{{ -'a' }}",
    # comparisons and logic
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ (1,) == [1] }}",
    "{{ 'a' in 'abc' }} {{ 'a' not in 'abc' }} {{ 1 in [1] }} {{ 'k' in {'k': 1} }} {{ x in [1] }} {{ 'a' in x }}",
    "{{ 1 and 0 or 'z' }} {{ none or [] }} {{ not x }} {{ '' and 1 }} {{ 'a' if false }}|{{ 'a' if true else 'b' }}",
    "{{ 1 < 'a' }}", "{{ 1 in 'abc' }}", "{{ none < 1 }}", "{{ 1 in 5 }}",
    # how values are printed
    "{{ [1, 'a', none, true, 2.5, (1,), (), {'k': [1]}] }} {{ {'a': \"it's\", 1: 2} }} {{ 'it\\'s \"x\"' ~ none ~ true ~ 1.0 }}",
    "{{ ['\\n\\t\\\\', 'é', '\\x00\\x7f\\xa0\\u200b', \"'\\\"\"] }} {{ [['a'], {'b': {}}] }}",
    "{{ {'a': 1, 'b': [1, 2.0, none, false, \"é\\n\\\"<>&'\"], 'c': {}, 'd': []} | tojson }}",
    "{{ {'a': 1, 'b': [1, {'c': 2}], 'e': [], 'f': {}} | tojson(indent=2) }} {{ [1, 2] | tojson(separators=(',', ':')) }}",
    "{{ {'b': 1, 'a': 'é\\u0001\\x7f\\U0001f600'} | tojson(ensure_ascii=true, sort_keys=true) }} {{ {1: 2, none: 3, true: 4} | tojson }}",
    "{{ x | tojson }}", "{{ {[1]: 2} }}",
    # texts
    "{{ ' a b '.strip() }}|{{ 'xxaxx'.lstrip('x') }}|{{ 'xxaxx'.rstrip('x') }}|{{ '\\u3000a\\u00a0'.strip() }}|{{ 'abc'.strip('ca') }}",
    "{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a b c'.split(none, 1) }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ''.split(',') }} {{ ''.split() }} {{ ' a b  '.split(maxsplit=1) }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'bc')) }} {{ 'abc'.startswith('') }} {{ 'aXbX'.replace('X', '--') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'ab'.replace('', '-') }}",
    "{{ 'abc'.find('c') }} {{ 'abc'.find('x') }} {{ 'banana'.count('an') }} {{ 'aa'.count('') }} {{ '-'.join(['a', 'b']) }} {{ 'a\\nb\\r\\nc'.splitlines() }} {{ 'a\\nb'.splitlines(true) }}",
    "{{ 'hELLO wORLD'.capitalize() }} {{ 'hELLO w1rld x-y'.title() }} {{ 'abc'.upper() }} {{ 'ABC'.lower() }} {{ 'a-b (c) d' | title }} {{ 'xyz' | capitalize }}",
    "{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ '12'.isdigit() }} {{ ' '.isspace() }} {{ 'a'.isdigit() }} {{ ''.isspace() }}",
    "{{ 'abcdef'[1:3] }} {{ 'abcdef'[-2:] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[::2] }} {{ 'abc'[1] }} {{ 'abc'[-1] }} {{ [1, 2, 3][1:] }} {{ [1, 2, 3][:-1] }} {{ (1, 2)[::-1] }} {{ 'abc'[5:] }} {{ 'abcdef'[4:1:-1] }} {{ 'abcdef'[-100:100] }} {{ [1,2,3][::-2] }}",
    "{{ '日本語'[1] }} {{ '日本語' | length }} {{ '👩‍👩'[0] }} {{ 'e\\u0301' | length }}", "{{ 'a' 'b' \"c\" }} {{ 'a\\q\\101\\x41\\u0041' }}",
    "{{ ''.split('') }}", "{{ 'abc'.nothing() }}", "{{ 'abc'.nothing }}|", "{{ 5 .x }}", "{{ 'x'.join([1]) }}",
    "{{ 'Straße éÉ ёЁ ŉ ﬁ' | upper }} {{ 'ÄÖÜ İ ЁЖ ΑΒ' | lower }} {{ 'éa'.capitalize() }} {{ 'ÉÉ' | capitalize }} {{ '日本'.upper() }}",
    "{% macro m(a, b=2, c=3) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*[1, 5]) }} {{ m(1, **{'c': 7}) }} {{ m(*[1], c=4) }}", "{{ range(**1) }}",
    # lists and dicts
    "{% set d = {'b': 1, 'a': 2} %}{{ d.items() | list }} {{ d.keys() | list }} {{ d.values() | list }} {{ d.get('z') }} {{ d.get('z', 3) }} {{ d.b }} {{ d['a'] }} {{ d.z }}| {{ d | dictsort }} {{ d | dictsort(by='value') }} {{ d | items | list }} {{ d | length }} {{ d | list }}",
    "{% set d = {'items': 1, 'get': 2} %}{{ d['items'] }} {{ d.get('get') }} {{ d['keys'] is callable }} {{ d.items is callable }}",
    "{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A'] | sort(case_sensitive=true) }} {{ [3, 1] | sort(reverse=true) }} {{ [{'a': 2}, {'a': 1}] | sort(attribute='a') }}",
    "{{ [1, 2, 3] | first }} {{ [1, 2, 3] | last }} {{ [] | first }}| {{ 'abc' | first }} {{ [1, 2, 3] | sum }} {{ [3, 1] | max }} {{ [3, 1] | min }} {{ [1.5, 1] | sum }} {{ [[1]] | sum(start=1) }}",
    "{{ [1, 2] | join(', ') }} {{ [{'a': 1}, {'a': 2}] | join('-', attribute='a') }} {{ 'abc' | join('.') }} {{ ['a', 'b', 'A'] | unique | list }} {{ 'abc' | reverse }} {{ [1, 2] | reverse | list }}",
    "{{ ['a', 'b'] | map('upper') | list }} {{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }} {{ [{}] | map(attribute='a', default='z') | list }} {{ [[1, 2]] | map(attribute=0) | list }} {{ ['a,b'] | map('replace', ',', ';') | list }}",
    "{% set m = [{'r': 'u', 'c': 1}, {'r': 'a'}, {'r': 'u'}] %}{{ m | selectattr('r', 'equalto', 'u') | list | length }} {{ m | selectattr('c', 'defined') | list }} {{ m | rejectattr('r', '==', 'u') | list }} {{ m | selectattr('c') | list }} {{ [1, 2, 3] | select('odd') | list }} {{ [1, none, 2] | reject('none') | list }} {{ [0, 1] | select | list }}",
    "{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent(1, blank=true) }}|{{ ' a ' | trim }}|{{ 'xax' | trim('x') }}|{{ none | trim }}|{{ 5 | string + '5' }}",
    "{{ x | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | d('e') }} {{ x | length }} {{ x | list }} {{ x | lower }}|{{ x | join }}|{{ x | items | list }}",
    "{{ dict(a=1, b=2) }} {{ range(3) | list }} {{ range(1, 7, 2) | list }} {{ range(3, 0, -1) | list }} {{ dict() }}", "{{ range(1000000) }}",
    "{{ [].append(1) }}", "{% set l = [1] %}{{ l.append is defined }} {{ l.count(1) }} {{ l.index(1) }}", "{{ {}.update({}) }}", "{{ {}.pop('a') }}",
    "{{ 5 | dictsort }}", "{{ [1, 'a'] | sort }}", "{{ none | length }}", "{{ none | join }}", "{{ [1] | map('nothing') | list }}",
    # tests
    "{{ x is defined }} {{ x is undefined }} {{ none is none }} {{ 1 is number }} {{ true is number }} {{ 'a' is string }} {{ [] is iterable }} {{ 'a' is iterable }} {{ x is iterable }} {{ 5 is iterable }} {{ none is iterable }} {{ {} is mapping }} {{ [] is mapping }} {{ 'a' is sequence }} {{ {} is sequence }} {{ x is sequence }} {{ 5 is sequence }}",
    "{{ true is boolean }} {{ 1 is boolean }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ 1 is integer }} {{ true is integer }} {{ 1.0 is float }} {{ 1 is float }} {{ 3 is odd }} {{ 3 is even }} {{ 4 is divisibleby 2 }} {{ 4 is eq 4 }} {{ 4 is ne(4) }} {{ 1 is in [1] }} {{ 4 is gt 3 }} {{ 'ab' is lower }} {{ 'AB' is upper }} {{ 'A1' is lower }} {{ 1 is not none }}",
    "{{ range is callable }} {{ 1 is callable }}", "{{ 1 is nothing }}", "{{ 1 | nothing }}",
    # loops
    "{% for i in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.length }}{{ loop.previtem }}-{{ loop.nextitem }};{% endfor %}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }} {% endfor %}{% for (k, v) in [(1, 2)] %}{{ k }}{{ v }}{% endfor %}{% for c in 'ab' %}{{ c }}.{% endfor %}",
    "{% for i in range(10) if i is odd %}{{ i }}/{{ loop.length }} {% else %}none{% endfor %}{% for i in [] %}x{% else %}empty{% endfor %}{% for i in x %}x{% else %}undefined{% endfor %}",
    "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% set a = 1 %}{% for i in [1, 2] %}{{ a }}{% set a = a + i %}{{ a }} {% endfor %}{{ a }}",
    "{% set ns = namespace(n=0, l=[]) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.n }}{{ ns.l }}{{ ns.z }}|{% set ns.z = 1 %}{{ ns.z }}",
    "{% for i in [1, 2] %}{% for j in [3] %}{{ loop.depth }}{{ loop.depth0 }}{{ i }}{{ j }} {% endfor %}{{ loop.depth }}{{ loop.cycle('odd', 'even') }} {% endfor %}",
    "{% for i in 5 %}{% endfor %}", "{% for i in none %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}",
    "{% set a.b = 1 %}", "{% for i in [1] %}{% break 1 %}{% endfor %}", "{% break %}",
    # set, macros, filters of blocks
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %}x{{ a }}{% endset %}{{ c }}{% set d | upper %}y{% endset %}{{ d }}{% if 1 %}{% set e = 3 %}{% endif %}{{ e }}{% set t = 1, %}{{ t }}",
    "{% macro m(a, b=2, c='z' ~ a) %}{{ a }}{{ b }}{{ c }}{{ d }};{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=5) }}{{ m('x', 'y', 'z') }}{% set d = 9 %}{{ m(1) }}{{ m(1) | length }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}{% macro g() %}{% for i in [1, 2] %}{{ i }}{% endfor %}{% endmacro %}{{ g() ~ g() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{% set l = [m] %}{{ l[0]('q') }}{% filter upper %}abc{{ 'x' }}{% endfilter %}{% filter replace('a', 'b') | upper %}aca{% endfilter %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(z=1) }}", "{{ nothing() }}", "{{ (1)() }}",
    # white space
    "a\n  {% if 1 %}\n  b\n  {% endif %}\nc\n", "a  {%- if 1 -%}  b  {%- endif -%}  c", "a\n  {%+ if 1 %}b{% endif +%}\nc", "  {{ 1 }}\n{{ 2 }}\n\n", "x {# c #}\n y{#- d -#}  z {#+ e +#}\nw",
    "  {# c #}  {% set a = 1 %}\n  {{- a }}\r\nb\rc\r\n", "{% raw %}\n {{ x }} {% if %}\n{% endraw %}\nz", "a {%- raw -%}  b  {%- endraw -%}  c", "\n\n{% if 1 %}\n\n{% endif %}\n\n", "{{ '}}' }}{{ {'a': {'b': 1}} }}{% set a = '%}' %}{{ a }}{{ 1 -}}  \n  x",
    "a\u2003{% if 1 %}\u00a0b{%- endif %}", "{#-#}x {#  -#} y", "  {%- set a = 1 %} \n x",
    "{% generation %}a{{ 1 }}{% endgeneration %}b{% generation %}é{% endgeneration %}", "{{ strftime_now('%d %b %Y, %A') }}",
    # what is refused
    "{{ raise_exception('no: ' ~ 1) }}", "{% include 'x' %}", "{% import 'x' as y %}", "{{ x.y }}", "{{ x['y'] }}", "{{ ''.__class__ }}|", "{{ ''.__class__.__mro__ }}", "{% if %}x{% endif %}",
    "{{ }}", "{{ 1", "{% if 1 %}", "{% endif %}", "{{ 1 + }}", "{{ 'a }}", "{{ [1 }}", "{{ (1] }}", "{{ f(a=1, 2) }}", "{# x", "{% raw %}x", "{{ 1 2 }}", "{% set %}", "{% for x %}{% endfor %}", "{{ a b }}", "{{ a is }}", "{{ a. }}", "{{ a| }}", "{{ $ }}", "{% nothing %}",
]


class Generation(Extension):
    """As AssistantTracker of transformers: which parts are written inside the tag."""
    tags = {"generation"}
    begin, end = "\ue000", "\ue001"

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller):
        return self.begin + caller() + self.end


def environment():
    def raise_exception(message):
        raise Refused(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = datetime.datetime(2026, 1, 1).strftime
    return made


class Refused(jinja2.exceptions.TemplateError):
    pass


def rendered(env, source, values):
    """{"text", "generation"}, {"refused"} or {"error"}; offsets are those of the UTF-8 bytes."""
    try:
        text = env.from_string(source).render(**values)
    except Refused as refused:
        return {"refused": str(refused)}
    except Exception as error:  # whatever Python answers to a wrong template
        return {"error": f"{type(error).__name__}: {error}"}
    plain, ranges = b"", []
    for part in text.replace(Generation.begin, "\0" + Generation.begin).replace(Generation.end, "\0" + Generation.end).split("\0"):
        begin = len(plain)
        if part.startswith(Generation.begin):
            ranges.append([begin, begin])
        plain += part.replace(Generation.begin, "").replace(Generation.end, "").encode()
        if part.startswith(Generation.begin):
            ranges[-1][1] = len(plain)
    if "\0" in plain.decode() or "\0" in source:
        raise RuntimeError("a template with NUL")
    merged = []  # ranges that touch are one
    for begin, end in ranges:
        if merged and merged[-1][1] == begin:
            merged[-1][1] = end
        elif begin < end:
            merged.append([begin, end])
    return {"text": plain.decode(), "generation": merged}


def main():
    folder = pathlib.Path(sys.argv[1])
    env = environment()
    templates = {path.name: [{"conversation": name, **rendered(env, path.read_text(encoding="utf-8"), {**TOKENS, **conversation})}
                             for name, conversation in CONVERSATIONS.items()] for path in sorted(folder.glob("*.jinja"))}
    vectors = {"tokens": TOKENS, "conversations": CONVERSATIONS, "templates": templates,
               "expressions": [{"template": source, **rendered(env, source, {})} for source in EXPRESSIONS]}
    text = json.dumps(vectors, ensure_ascii=False, indent=1)
    (folder / "vectors.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
