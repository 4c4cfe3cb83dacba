#include "core/text/template/parser.hpp"

#include <charconv>
#include <initializer_list>

#include "core/text/template/builtins.hpp"
#include "core/text/template/expression_parser.hpp"
#include "core/text/template/lexer.hpp"
#include "core/text/template/limits.hpp"
#include "core/text/template/statements.hpp"

namespace capstan::text_template {
namespace {

using Kind = Token::Kind;
using BlockPtr = std::unique_ptr<const Block>;

class Parser {
 public:
  explicit Parser(std::string_view text) : words_(tokenize_template(text)), expressions_(words_) {}

  Parsed parse() {
    Parsed parsed{.body = block({}), .marks_generated = false};
    parsed.marks_generated = marks_generated_;
    return parsed;
  }

 private:
  /// Statements up to one that begins with one of `ends`, whose name is taken. Without ends: up to the end.
  BlockPtr block(std::initializer_list<const char*> ends) {
    const Nested nested(words_);
    auto made = std::make_unique<Block>();
    for (;;) {
      const Token token = words_.take();
      if (token.kind == Kind::kEnd) {
        if (ends.size() == 0) return made;
        words_.fail(std::string("the template ends, and '{% ") + *ends.begin() + " %}' is missing.");
      }
      if (token.kind == Kind::kText) {
        made->statements.push_back(std::make_unique<TextStatement>(token.line, token.text));
      } else if (token.kind == Kind::kOutputBegin) {
        made->statements.push_back(std::make_unique<Output>(token.line, expressions_.tuple()));
        words_.expect(Kind::kOutputEnd, "}}");
      } else {
        for (const char* end : ends) {
          if (words_.skip_name(end)) {
            ended_by_ = end;
            return made;
          }
        }
        made->statements.push_back(statement());
      }
    }
  }

  void end_tag() { words_.expect(Kind::kStatementEnd, "%}"); }

  std::unique_ptr<const Statement> statement() {
    const Token name = words_.take();
    if (name.text == "if") return if_statement(name.line);
    if (name.text == "for") return for_statement(name.line);
    if (name.text == "set") return set_statement(name.line);
    if (name.text == "macro") return macro_statement(name.line);
    if (name.text == "generation") {
      end_tag();
      marks_generated_ = true;
      auto made = std::make_unique<Generation>(name.line, block({"endgeneration"}));
      end_tag();
      return made;
    }
    if ((name.text == "break" || name.text == "continue") && loops_ > 0) {
      end_tag();
      return std::make_unique<Jump>(name.line, name.text == "break" ? Flow::kBreak : Flow::kContinue);
    }
    words_.fail_at(name, "'{% " + name.text +
                             " %}' is not supported here. Known: if, for, set, macro, generation, raw; break and "
                             "continue within for.");
  }

  std::unique_ptr<const Statement> if_statement(int line) {
    std::vector<If::Branch> branches;
    for (;;) {
      ExpressionPtr condition = expressions_.expression();
      end_tag();
      branches.emplace_back(std::move(condition), block({"elif", "else", "endif"}));
      if (ended_by_ != "elif") break;
    }
    if (ended_by_ == "else") {
      end_tag();
      branches.emplace_back(nullptr, block({"endif"}));
    }
    end_tag();
    return std::make_unique<If>(line, std::move(branches));
  }

  Target target() {
    Target made;
    const bool bracketed = words_.skip("(");
    do {
      made.names.push_back(words_.expect(Kind::kName, "a name").text);
    } while (words_.skip(","));
    if (bracketed) words_.expect_symbol(")");
    return made;
  }

  std::unique_ptr<const Statement> for_statement(int line) {
    Target names = target();
    if (!words_.skip_name("in")) words_.fail("'in' is missing.");
    ExpressionPtr over = expressions_.tuple_without_condition();
    ExpressionPtr condition = words_.skip_name("if") ? expressions_.expression() : nullptr;
    end_tag();
    ++loops_;
    BlockPtr body = block({"else", "endfor"});
    --loops_;
    BlockPtr otherwise;
    if (ended_by_ == "else") {
      end_tag();
      otherwise = block({"endfor"});
    }
    end_tag();
    return std::make_unique<For>(line, std::move(names), std::move(over), std::move(condition), std::move(body),
                                 std::move(otherwise));
  }

  std::unique_ptr<const Statement> set_statement(int line) {
    Target names = target();
    if (words_.skip(".")) names.member = words_.expect(Kind::kName, "a name").text;
    if (words_.skip("=")) {
      ExpressionPtr value = expressions_.tuple();
      end_tag();
      return std::make_unique<Set>(line, std::move(names), std::move(value), nullptr);
    }
    end_tag();
    BlockPtr body = block({"endset"});
    end_tag();
    return std::make_unique<Set>(line, std::move(names), nullptr, std::move(body));
  }

  std::unique_ptr<const Statement> macro_statement(int line) {
    std::string name = words_.expect(Kind::kName, "a name").text;
    words_.expect_symbol("(");
    std::vector<Macro::Parameter> parameters;
    while (!words_.skip(")")) {
      if (!parameters.empty()) words_.expect_symbol(",");
      Macro::Parameter parameter{words_.expect(Kind::kName, "a name").text, nullptr};
      if (words_.skip("=")) parameter.otherwise = expressions_.expression();
      parameters.push_back(std::move(parameter));
    }
    end_tag();
    const int loops = std::exchange(loops_, 0);
    BlockPtr body = block({"endmacro"});
    loops_ = loops;
    end_tag();
    return std::make_unique<Macro>(line, std::move(name), std::move(parameters), std::move(body));
  }

  Words words_;
  ExpressionParser expressions_;
  std::string ended_by_;
  int loops_ = 0;
  bool marks_generated_ = false;
};

}  // namespace

Parsed parse_template(std::string_view text) { return Parser(text).parse(); }

}  // namespace capstan::text_template
