"""Chat templates, conversations, and what transformers renders of them.

    template_cases.py FILE

Writes lines {"template", "messages", "tools", "add_generation_prompt", "text", "generated": [[begin, end], ...]}, bytes, or with
"error" in place of the text where transformers raises.
"""
import json
import re
import sys

from transformers.utils.chat_template_utils import render_jinja_template

TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "The \"weather\" <now>",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "enum": [1, 2]}},
                   "required": ["city"]}}}]
CHATS = {
    "plain": {"messages": [{"role": "user", "content": "Hello <b>\u00e9</b>"}, {"role": "assistant", "content": " Hi\n"},
                           {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
                            {"role": "assistant", "content": "Yo"}]},
    "reasons": {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\na"},
                             {"role": "user", "content": "r"}, {"role": "assistant", "reasoning": "why", "content": "b"}]},
    "tools": {"messages": [{"role": "user", "content": "Weather?"},
                           {"role": "assistant", "content": "", "tool_calls": [
                               {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo", "days": 1}}}]},
                           {"role": "tool", "name": "weather", "content": "{\"t\": 3.5}"},
                           {"role": "assistant", "content": "3.5"}], "tools": TOOLS},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                           {"role": "assistant", "content": "c"}]},
    "prompt": {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True},
}

# A template for each way that families of models have, in words of this file.
FAMILIES = [
    # Roles between marks.
    """{% for message in messages %}
{%- if loop.first and message.role != 'system' %}{{ '<|begin|>system\\nYou help.<|end|>\\n' }}{% endif %}
    {{- '<|begin|>' + message['role'] + '\\n' }}
    {%- if message.role == 'assistant' %}{% generation %}{{ message.content + '<|end|>' }}{% endgeneration %}
{% else %}{{ message.content is string and message.content or message.content | map(attribute='text') | join('') }}<|end|>
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|begin|>assistant
{% endif %}""",
    # Turns that alternate, and a system message within the first.
    """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim + '\\n\\n' %}
{%- set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('turns must alternate, got ' ~ message.role) }}
    {% endif %}
    {% if message['role'] == 'user' %}
        {{ '[Q] ' + (system if loop.first else '') + message['content'] | trim + ' [/Q]' }}
    {% else %}{{ ' ' ~ message['content'] | trim ~ eos_token }}{% endif %}
{% endfor %}""",
    # Tools in JSON, and what was called.
    """{%- macro call(tool) -%}
<call>{{ {'name': tool.name, 'arguments': tool.arguments} | tojson }}</call>
{%- endmacro -%}
{%- if tools is defined and tools -%}
Tools:
{% for tool in tools %}{{ tool | tojson(indent=2) }}
{{ tool.function | tojson(sort_keys=true, separators=(',', ':')) }}
{%- for name, facts in tool.function.parameters.properties.items() %}
 {{ loop.index }}/{{ loop.length }} {{ name }}: {{ facts.type }}{% if facts.enum %} of {{ facts.enum | join('|') }}{% endif %}
{%- endfor %}
{% endfor %}
{%- endif -%}
{%- for message in messages %}
[{{ message.role | upper }}]
{%- if message.tool_calls is defined %}{% for one in message.tool_calls %}{{ call(one.function) }}{% endfor %}
{%- elif message.role == 'tool' %} {{ message.name | default('?') }} -> {{ message.content }}
{%- else %} {{ message.content }}{% endif %}
{%- endfor %}""",
    # Reasoning that is kept behind the last question alone.
    """{%- set state = namespace(last=messages | length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if not state.found and message.role == 'user' %}{% set state.found = true %}{% set state.last = index %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set text = message.content if message.content is string else '' %}
    {%- set reason = message.reasoning_content or '' %}
    {%- if '</think>' in text %}
        {%- set reason = text.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set text = text.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<' ~ message.role ~ '>' }}
    {%- if message.role == 'assistant' and loop.index0 > state.last and reason %}{{ '(' + reason.strip() + ')' }}{% endif %}
    {{- text }}
{%- endfor %}""",
]

# One construct each: {{ messages }} of the chat "plain" is at hand.
CONSTRUCTS = [
    "{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 1.5 * 2 }} {{ 1e0 if false else 2.0 }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ 1.0 }} {{ 'ab' * 3 }} {{ [1] + [2, 'x'] }} {{ {'a': 1, 'b': [none, true]} }} {{ (1, 2)[1] }}",
    "{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ 'a' != 'b' }} {{ 3 >= 3 and 2 > 3 }} {{ not 1 in [2] }} {{ 1 not in [2] }} {{ 'b' in 'abc' }}",
    "{{ missing }}|{{ missing.x is defined if missing is defined else 'no' }}|{{ messages[9] }}|{{ messages[0].none }}|{{ '' or 'x' }}",
    "{{ 'abcdef'[1:3] }} {{ 'abcdef'[::-2] }} {{ 'abcdef'[-2:] }} {{ [1, 2, 3][:-1] }} {{ 'abc'[5:] }} {{ 'a\u00e9\u4e2d'[::-1] }}",
    "{{ 'A b\u00df\u00e9'.upper() }} {{ 'A B'.lower() }} {{ 'hello wORLD'.title() }} {{ 'hELLO'.capitalize() }} {{ '\u00e9a' | capitalize }}",
    "{{ ' x '.strip() ~ '|' ~ 'xxaxx'.strip('x') ~ '|' ~ 'a,b,,c'.split(',') ~ 'a  b c'.split() ~ 'a b c'.split(' ', 1) }}",
    "{{ 'abab'.replace('a', 'x') }} {{ 'abab'.replace('a', 'x', 1) }} {{ 'ab'.replace('', '-') }} {{ 'abc'.startswith(('x', 'a')) }}",
    "{{ 'abc'.find('c') }} {{ 'abcabc'.count('bc') }} {{ 'a'.join(['x', 'y']) }} {{ 'abc'.endswith('bc') }} {{ 'a\\nb\\n'.splitlines() }}",
    "{{ {'b': 1, 'A': 2}.items() | list }} {{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1}.get('c') }} {{ {'b': 1}.get('c', 5) }} {{ {'a': 1}.keys() | list }}",
    "{{ [3, 1, 2] | sort }} {{ ['b', 'A'] | sort }} {{ [1, 2] | reverse | list }} {{ ['a', 'A', 'b'] | unique | list }} {{ [1, 2] | sum }}",
    "{{ [1, 2, 3] | first }} {{ [1, 2, 3] | last }} {{ [1, 3, 2] | max }} {{ '3' | int + 1 }} {{ 'x' | int(7) }} {{ '2.5' | float }} {{ -3 | abs }} {{ 2.5 | round }}",
    "{{ messages | map(attribute='role') | join(', ') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{{ messages | rejectattr('role', 'eq', 'user') | map(attribute='content') | list }} {{ [1, none, 2] | select | list }} {{ ['a', 'b'] | map('upper') | list }}",
    "{{ [0, 1, 2, 3] | select('odd') | list }} {{ [1, 2] | reject('equalto', 1) | list }} {{ 'x' | default('y') }} {{ '' | default('y', true) }}",
    "{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\nb' | indent(width=1) }}",
    "{{ {'a': 'q\\\"\\n\u00e9\u2028', 'b': [1, 2.5, true, none], 'c': {}} | tojson }} {{ [] | tojson(indent=4) }} {{ [1, {'x': []}] | tojson(indent=1) }}",
    "{{ 'it\\'s' }} {{ ['it\\'s', 'say \"x\"', 'a\\\\b'] }} {{ \"\\u00e9\\x41\" }} {{ 'a' 'b' }} {{ 1_000 }} {{ 0.1 + 0.2 }} {{ 1e0 | default(1) }}",
    "{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}{{ x }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }} {% else %}none{% endfor %}{% for x in [] %}{% else %}none{% endfor %}",
    "{% for a, b in [[1, 2], [3, 4]] %}{{ a }}-{{ b }}{{ loop.previtem is defined }}{{ loop.nextitem }} {% endfor %}{% for k in {'x': 1} %}{{ k }}{% endfor %}",
    "{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}{{ range(2, 9, 3) | list }}",
    "{% set x = 1 %}{% for y in [1, 2] %}{% set x = x + y %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}{% set a, b = 1, 2 %}{{ a + b }}",
    "{% set ns = namespace(n=0) %}{% for y in [1, 2] %}{% set ns.n = ns.n + y %}{% endfor %}{{ ns.n }}{% set block %}in {{ ns.n }}{% endset %}[{{ block }}]",
    "{% macro m(a, b='d', c=none) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, c=2) }}{{ m(b=3, a=4) }}{% set t = m(5) %}{{ t | length }}",
    "a  {#- c -#}  b {# x #}\n  {% if true %}\n  c\n  {% endif %}\n\td{%+ if true %}e{% endif +%}\nf {{- ' g ' -}} h\n",
    "{% raw %}{{ not }} {% x %}{% endraw %}{%- raw -%}  y  {%- endraw -%}  z",
    "line\r\n{% if true %}\r\nx\r\n{% endif %}\r\nend\r\n",
    "{{ 1 is number }} {{ 'a' is string }} {{ {} is mapping }} {{ [] is sequence }} {{ 'a' is iterable }} {{ true is boolean }} {{ none is none }} {{ 1 is not none }} {{ 3 is odd }} {{ 1 is integer }} {{ 1.0 is float }} {{ true is true }} {{ 0 is false }} {{ 2 is in [2] }}",
    "{{ dict(a=1, b=2).b }} {{ 'x' if 1 > 2 }}| {{ 'a' if false else 'b' if false else 'c' }} {{ (1 if true else 2) + 3 }} {{ messages[0]['role'] }} {{ messages.0.role }} {{ messages[-1].content }}",
    "{{ 2.4 | round(method='ceil') }} {{ 2.66 | round(1, 'floor') }} {{ -2.5 | round }} {{ 1.25 | round(precision=1) }}",
    "{{ [{'a': 2, 'b': {'c': 1}}, {'a': 2, 'b': {'c': 3}}] | unique(attribute='a') | list | length }} {{ [{'a': 2}, {'a': 5}] | sum('a', 10) }} {{ [1.5] | sum(start=1) }}",
    "{{ [{'a': 2}, {'a': 5}] | max(attribute='a') }} {{ ['b', 'A', 'a'] | min }} {{ ['b', 'A', 'a'] | min(true) }} {{ [{'a': {'b': 4}}] | max(attribute='a.b') }}",
    "{{ 'ff' | int(0, 16) }} {{ '0x1F' | int(base=16) }} {{ '-101' | int(base=2) }} {{ '--5' | int }} {{ '+-5' | int }} {{ '0x-5' | int(base=16) }} {{ 'zz' | int(3, base=16) }} {{ '2.9' | int }} {{ '12' | int(default=1) }}",
    "{{ 'a\\r\\nb\\rc\\x0bd\\x1ce\u2028f\\n\\ng'.splitlines() }} {{ 'a\\r\\nb\\n'.splitlines(true) }} {{ ''.splitlines() }} {{ '\\n'.splitlines() }}",
    "{{ ['x', 'y'] | map('replace', 'x', 'z') | list }} {{ {'a': 1} | tojson(ensure_ascii=false) }} {{ 'xax' | trim('x') }} {{ 'xax' | trim(chars='x') }}",
    "{{ {'a': '\u00e9\U0001f600\x7f'} | tojson(true) }} {{ none | selectattr('x') | list }} {{ none | map('upper') | list }} {{ 0 | reject | list }}",
    "{{ '{}-{}'.format(1, 'a') }} {{ '{1}{0}{x}'.format('a', 'b', x=none) }} {{ 'a{{b}}'.format() }} {{ ':{}:'.format(2.0) }}",
    "{{ '{'.format(1) }}", "{{ '{} {}'.format(1) }}", "{{ '{x}'.format(1) }}", "{{ 'a}'.format() }}",
    "{{ [{'a': 1}] | map(attribute='a', defualt='x') | list }}",
    "{{ 'a' | upper(1) }}", "{{ 1.5 | round(1, 'common', 2) }}", "{{ [1] | join(by='x') }}", "{{ 'a'.split(by='x') }}", "{{ [1] | sort(true, reverse=true) }}",
    "{{ 'a'.splitlines(1, 2) }}", "{{ {'a': 1}.get() }}", "{{ {'a': 1}.items(1) }}", "{{ 1 is odd(2) }}", "{{ 1.5 | round(method='up') }}",
    "{{ raise_exception('stop ' ~ 1) }}", "{{ missing.x }}", "{{ 1 + 'a' }}", "{{ 1 / 0 }}", "{{ [1, 2].append(3) }}", "{% set a, b = [1] %}", "{{ missing() }}",
    "{{ 'abc' | nofilter }}", "{% nothing %}", "{% if x %}", "{{ 'abc }}", "{{ 1 + }}", "{% for x in %}{% endfor %}", "{% endif %}", "{{ a b }}",
]


def main(path):
    rows = [(family, chat) for family in FAMILIES for chat in CHATS.values()]
    rows += [(construct, CHATS["plain"]) for construct in CONSTRUCTS]
    with open(path, "w", encoding="utf-8") as out:
        for template, chat in rows:
            row = {"template": template, "messages": chat["messages"], "tools": chat.get("tools"),
                   "add_generation_prompt": chat.get("add_generation_prompt", False)}
            marks = re.search(r"{%-?\s*generation", template) is not None
            try:
                texts, generated = render_jinja_template(
                    conversations=[chat["messages"]], tools=row["tools"], chat_template=template,
                    add_generation_prompt=row["add_generation_prompt"], return_assistant_tokens_mask=marks,
                    bos_token="<s>", eos_token="</s>")
                row["text"] = texts[0]
                row["generated"] = [[len(texts[0][:at].encode()) for at in span] for span in (generated[0] if marks else [])]
            except Exception as error:
                row["error"] = str(error)
            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
