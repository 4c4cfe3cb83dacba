#pragma once

#include <string>

namespace capstan::cli {

/// The text with what HTML would read as markup written as entities.
std::string html_escaped(const std::string& text);

/// A page that needs nothing but itself, in the style of all pages. `style`: CSS after the common one; `body`: HTML.
std::string html_page(const std::string& title, const std::string& style, const std::string& body);

}  // namespace capstan::cli
