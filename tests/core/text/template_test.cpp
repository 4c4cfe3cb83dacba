#include "core/text/template/template.hpp"

#include <gmock/gmock.h>

#include <fstream>

#include "core/text/template/chat_template.hpp"
#include "tests/support/process.hpp"
#include "tests/support/readers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::text_template {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;

std::string rendered(const std::string& text, Dict variables = {}) {
  return Template(text, "chat").render(std::move(variables)).text;
}

/// The sentence of the error that reading or rendering ends with.
std::string error_of(const std::string& text, Dict variables = {}) {
  try {
    return "no error: " + rendered(text, std::move(variables));
  } catch (const TemplateError& error) {
    return error.what();
  }
}

/// A folder of a model with a chat template.
class ChatTemplates : public ::testing::Test {
 protected:
  ChatTemplate with(const std::string& text) const {
    write_bytes(folder_ / "chat_template.jinja", text);
    return ChatTemplate(folder_.path());
  }
  std::string fault(const std::filesystem::path& file = {}) const {
    try {
      ChatTemplate chat(folder_.path(), file);
    } catch (const RuntimeFault& thrown) {
      return thrown.what();
    }
    return "no error";
  }

  TemporaryFolder folder_;
};

TEST_F(ChatTemplates, RenderWhatTransformersRendersAndFailWhereItFails) {
  const std::string python = test::reader_python();
  if (python.empty()) GTEST_SKIP() << test::kNoReaders;
  const std::string file = (folder_ / "cases.jsonl").string();
  const ProcessResult made = run_process({python, CAPSTAN_TEST_SOURCE_DIR "/tests/core/text/template_cases.py", file});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  write_bytes(folder_ / "tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}})");
  std::ifstream lines(file);
  int equal = 0, failing = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    const std::string name = row.at("template").as_string();
    Rendered ours;
    std::string error;
    try {
      ours = with(name).render(row.at("messages"), row.at("tools"), row.at("add_generation_prompt").as_bool());
    } catch (const TemplateError& thrown) {
      error = thrown.what();
    }
    if (const Json* theirs = row.find("error")) {
      EXPECT_NE(error, "") << name << "\n" << theirs->as_string();
      ++failing;
      continue;
    }
    EXPECT_EQ(error, "") << name;
    EXPECT_EQ(ours.text, row.at("text").as_string()) << name;
    Json spans = Json::array();
    for (const auto& [begin, end] : ours.generated) {
      spans.push_back(Json(Json::Array{Json(static_cast<std::int64_t>(begin)), Json(static_cast<std::int64_t>(end))}));
    }
    EXPECT_EQ(spans, row.at("generated")) << name;
    ++equal;
  }
  EXPECT_GE(equal, 50);
  EXPECT_GE(failing, 14);
}

TEST_F(ChatTemplates, AreFoundInEitherFileOfAFolder) {
  const Json messages = Json::parse(R"([{"role": "user", "content": "x"}])");
  EXPECT_EQ(fault(), "'" + folder_.path().string() +
                         "' has no chat template: neither chat_template.jinja nor chat_template in "
                         "tokenizer_config.json. Name a file with --chat-template.");
  write_bytes(folder_ / "tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "no"},
    {"name": "default", "template": "{{ messages[0].content }}1"}]})");
  EXPECT_EQ(ChatTemplate(folder_.path()).render(messages, Json()).text, "x1");
  write_bytes(folder_ / "tokenizer_config.json", R"({"chat_template": "{{ messages[0].content }}2"})");
  EXPECT_EQ(ChatTemplate(folder_.path()).render(messages, Json()).text, "x2");
  EXPECT_EQ(with("{{ messages[0].content }}3").render(messages, Json()).text, "x3");
  write_bytes(folder_ / "other", "4");
  EXPECT_EQ(ChatTemplate(folder_.path(), folder_ / "other").render(messages, Json()).text, "4");
  EXPECT_EQ(fault(folder_ / "none"), (folder_ / "none").string() + ": cannot be read.");
  write_bytes(folder_ / "other", "a\n{% if %}");
  EXPECT_EQ(fault(folder_ / "other"), (folder_ / "other").string() + ":2: expected a value, found '%}'.");
  write_bytes(folder_ / "other", "a\xFF");
  EXPECT_EQ(fault(folder_ / "other"), (folder_ / "other").string() + ": is not UTF-8 at byte 1.");
}

TEST_F(ChatTemplates, KnowWhatTheAssistantWroteByMarksOrByWhatEachTurnAdds) {
  const Json messages = Json::parse(R"([{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"},
    {"role": "user", "content": "e"}, {"role": "assistant", "content": "f"}])");
  const auto parts = [&](const ChatTemplate& chat) {
    return chat.assistant_parts(messages, Json(), chat.render(messages, Json()));
  };
  const ChatTemplate marked = with(
      "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}");
  EXPECT_THAT(parts(marked), ElementsAre(Pair(7, 9), Pair(16, 17)));  // u:ab;a:cd;u:e;a:f;
  const ChatTemplate plain = with(
      "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
      "{% if add_generation_prompt %}a:{% endif %}");
  EXPECT_THAT(parts(plain), ElementsAre(Pair(7, 10), Pair(16, 18)));
  const ChatTemplate counting = with("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_THAT([&] { parts(counting); },
              ThrowsMessage<TemplateError>("the template renders what stands before message 1 of the assistant "
                                           "otherwise once the message follows, so that its tokens are not known. Use "
                                           "a template that marks them with {% generation %}, or --loss all."));
}

TEST(Templates, NameTheLineOfWhatIsWrong) {
  EXPECT_EQ(error_of("a\n{% nothing %}"),
            "chat:2: '{% nothing %}' is not supported here. Known: if, for, set, macro, generation, raw; break and "
            "continue within for.");
  EXPECT_EQ(error_of("{{ 'a' | odd }}"), "chat:1: the filter 'odd' is not supported.");
  EXPECT_EQ(error_of("{{ 1 is blue }}"), "chat:1: the test 'blue' is not supported.");
  EXPECT_EQ(error_of("{{ [1] | join(by=2) }}"), "chat:1: the filter 'join' has no argument 'by'.");
  EXPECT_EQ(error_of("{{ [1] | sort(true, reverse=true) }}"),
            "chat:1: the filter 'sort' is given its argument 'reverse' twice.");
  EXPECT_EQ(error_of("{{ 'a'.split(1, 2, 3) }}"),
            "chat:1: the method 'split' takes at most 2 arguments, and the template gives 3.");
  EXPECT_EQ(error_of("{{ 1 is odd(2) }}"),
            "chat:1: the test 'odd' takes at most 0 arguments, and the template gives 1.");
  EXPECT_EQ(error_of("{{ '{} {}'.format(1) }}"), "chat:1: the method 'format' is given no value for '{}'.");
  EXPECT_EQ(error_of("{{ '{0' | format }}"), "chat:1: the filter 'format' is not supported.");
  EXPECT_EQ(error_of("{{ '[1' | from_json }}").substr(0, 63),
            "chat:1: the filter 'from_json' is given a text that is not JSON");
  EXPECT_EQ(rendered("{{ ('{\"a\": [1, 2]}' | from_json).a | sum }}"), "3");
  EXPECT_EQ(error_of("\n\n{{ x.y }}"), "chat:3: 'y' is asked of a value that is not defined.");
  EXPECT_EQ(error_of("\n{% if true %}\n{{ 1 + 'a' }}{% endif %}"),
            "chat:3: '+' has no meaning for values of type int and str.");
  EXPECT_EQ(error_of("{% if true %}\n"), "chat:1: the template ends, and '{% elif %}' is missing.");
  EXPECT_EQ(error_of("\n{{ raise_exception('no ' ~ 'way') }}"), "chat:2: the template raises: no way");
  EXPECT_EQ(error_of("{% set x.y = 1 %}"), "chat:1: 'x.y' cannot be set: 'x' is not a namespace.");
  EXPECT_EQ(error_of("{% macro m(a) %}{% endmacro %}{{ m(b=1) }}"), "chat:1: macro 'm' has no argument 'b'.");
  EXPECT_EQ(error_of("{% macro m() %}{% generation %}{% endgeneration %}{% endmacro %}{{ m() }}"),
            "chat:1: {% generation %} stands within a macro or {% set %}, where its place is not known.");
  EXPECT_EQ(error_of("{# a"), "chat:1: the comment '{#' has no end, '#}'.");
  EXPECT_EQ(error_of("{{ 'a"), "chat:1: a string has no end.");
  EXPECT_EQ(error_of("{{ a"), "chat:1: a tag has no end, '}}'.");
}

TEST(Templates, EndWhateverTheyAskFor) {
  EXPECT_EQ(error_of("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"),
            "chat:1: rendering takes more than 2000000 steps.");
  EXPECT_EQ(error_of("{{ range(1000000) }}"), "chat:1: a list has more than 100000 elements.");
  EXPECT_EQ(error_of("{{ 'a' * 100000000 }}"), "chat:1: a text is longer than 16777216 bytes.");
  EXPECT_EQ(error_of("{% set n = namespace(t='ab') %}{% for i in range(40) %}{% set n.t = n.t ~ n.t %}{% endfor %}"),
            "chat:1: a text is longer than 16777216 bytes.");
  EXPECT_EQ(error_of("{% set n = namespace(t=[1]) %}{% for i in range(40) %}{% set n.t = n.t + n.t %}{% endfor %}"),
            "chat:1: a list has more than 100000 elements.");
  EXPECT_EQ(error_of("{% set n = namespace(t=[]) %}{% for i in range(999) %}{% set n.t = [n.t] %}{% endfor %}"),
            "chat:1: lists lie too deep in each other.");
  EXPECT_EQ(error_of("{% set n = namespace(t=[]) %}{% for i in range(99) %}{% set n.t = [n.t, n.t] %}{% endfor %}"),
            "chat:1: a list has more than 100000 elements.");
  EXPECT_EQ(error_of("{% set t = 'ab' * 8000000 %}{% for i in range(9999) %}{{ t | length }}{% endfor %}"),
            "chat:1: rendering takes more than 2000000 steps.");
  // Elements share the bytes of a text, and count as work.
  EXPECT_EQ(error_of("{% set n = namespace(t=['a' * 16000000]) %}{% for i in range(9) %}{% set n.t = n.t + n.t %}"
                     "{% endfor %}{% for i in range(9999) %}{% set l = n.t | sort %}{% endfor %}"),
            "chat:1: rendering takes more than 2000000 steps.");
  EXPECT_EQ(rendered("{% for i in range(9999) %}{{ t[0] if i == 0 else '' }}{% if t[i] %}{% endif %}{% endfor %}",
                     {{"t", List(50'000, Value("a"))}}),
            "a");
  EXPECT_EQ(rendered("{{ t.split() | length }}", {{"t", std::string(80'000, ' ').replace(1, 1, "a b\x1c c")}}), "3");
  EXPECT_EQ(error_of("{% set n = namespace() %}{% set n.n = n %}"),
            "chat:1: a namespace cannot be put into another value.");
  EXPECT_EQ(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
            "chat:1: more than 100 macros call each other.");
  const std::string nested = "brackets and blocks lie more than 100 deep in each other.";
  EXPECT_THAT(error_of("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"), HasSubstr(nested));
  EXPECT_THAT(error_of("{{ " + std::string(5000, '-') + "1 }}"), HasSubstr(nested));
  std::string blocks, nots;
  for (int i = 0; i < 5000; ++i) {
    blocks += "{% if true %}";
    nots += "not ";
  }
  EXPECT_THAT(error_of(blocks), HasSubstr(nested));
  EXPECT_THAT(error_of("{{ " + nots + "1 }}"), HasSubstr(nested));
  // Long chains make trees as deep as brackets do.
  std::string sum = "{{ 1", filters = "{{ [] ";
  for (int i = 0; i < 4000; ++i) {
    sum += "+1";
    filters += "|list";
  }
  const std::string waiting = "chat:1: more than 2000 expressions wait for each other's values.";
  EXPECT_EQ(error_of(sum + " }}"), waiting);
  EXPECT_EQ(error_of(filters + " }}"), waiting);
  std::string longest = "{{ 1";
  for (int i = 0; i < 200'000; ++i) longest += "+1";
  EXPECT_EQ(error_of(longest + " }}"), "chat:1: a tag has more than 20000 words.");
  EXPECT_EQ(error_of("{{ 9223372036854775807 + 1 }}"), "chat:1: a number needs more than 64 bits.");
  EXPECT_EQ(error_of("{{ 99999999999999999999 }}"), "chat:1: the number 99999999999999999999 is too large.");
}

/// Each front part of a template, and the template without each character: errors are fine, crashes are not.
TEST(Templates, NeverCrashWhereTheyAreCutOrDamaged) {
  const std::string text =
      "{%- macro m(a, b='x') -%}{{ a|upper ~ b }}{%- endmacro %}{% for k, v in {'a': [1, 2.5]}.items() if k is string "
      "%}"
      "{{ loop.index }}{{ m(k, b=v[::-1]|join(',')) }}{% else %}-{% endfor %}{% set n = namespace(x=1) %}{% set n.x = "
      "'y' %}"
      "{{ n.x if n.x is defined else none }}{% raw %}{{{% endraw %}{# c #}{% if not (1 < 2 <= 3) %}a{% elif 1 in [1] %}"
      "{{ 'q\\u00e9'[1:] | tojson(indent=2) }}{% endif %}{% generation %}g{% endgeneration %}";
  EXPECT_EQ(rendered(text), "1A2.5,1y{{\"\u00e9\"g");
  int whole = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    whole += error_of(text.substr(0, i)).starts_with("no error");
    whole += error_of(text.substr(0, i) + text.substr(i + 1)).starts_with("no error");
  }
  EXPECT_GT(whole, 20);
  EXPECT_LT(whole, static_cast<int>(2 * text.size()) - 200);
}

}  // namespace
}  // namespace capstan::text_template
