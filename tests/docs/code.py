"""Compiles every C++ block of README.md and docs/ against the installed headers.

  code.py BUILD_DIR SOURCE_DIR TORCH_DIR

All blocks go into one file, because reading LibTorch's headers takes most of the time. A block that declares a class or a
plugin gets a namespace, any other block a function. `<!-- code: members -->` above a block puts it into a class.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

BUILD, SOURCE, TORCH = sys.argv[1:4]
BLOCK = re.compile(r"(?:<!-- code: (?P<place>\w+) -->\n)?```cpp\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
CONTEXT = ", ".join(["capstan::Engine& engine", "std::shared_ptr<Net> net", "at::Tensor hidden", "at::Tensor mask", "at::Tensor q",
                     "at::Tensor k", "at::Tensor v", "std::shared_ptr<Block> mlp", "std::vector<std::shared_ptr<Block>> blocks",
                     "int accumulation", "std::int64_t member", "std::int64_t generation"])


def pages():
    yield os.path.join(SOURCE, "README.md")
    for folder, _, files in sorted(os.walk(os.path.join(SOURCE, "docs"))):
        yield from (os.path.join(folder, name) for name in sorted(files) if name.endswith(".md"))


def program():
    """The text of the file, and how many blocks it holds."""
    includes, bodies = [], []
    for page in pages():
        text = open(page, encoding="utf-8").read()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code")) + 1
            code = match["code"]
            includes += re.findall(r"^#include .*$", code, re.MULTILINE)
            code = re.sub(r"^#include .*$", "", code, flags=re.MULTILINE)
            code = f'#line {line} "{os.path.relpath(page, SOURCE)}"\n{code}'
            name = f"block_{len(bodies)}"
            place = match["place"] or ("declarations" if re.search(r"^(class|struct|CAPSTAN_PLUGIN)\b", code, re.MULTILINE) else "statements")
            opening, closing = {"declarations": (f"namespace {name} {{", "}"),
                                "members": (f"struct {name} {{", "};"),
                                "statements": (f"void {name}({CONTEXT}) {{ {{", "} }")}[place]
            bodies.append(f"{opening}\n{code}\n{closing}\n")
    plugin = ("#undef CAPSTAN_PLUGIN\n"
              "#define CAPSTAN_PLUGIN(...) const capstan_component* const components[] = {__VA_ARGS__};\n")
    return "\n".join(["#include \"prelude.hpp\"", *dict.fromkeys(includes), plugin, *bodies]), len(bodies)


def main():
    text, count = program()
    if count == 0:
        sys.exit("no C++ block was found")
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "prefix")
        subprocess.run(["cmake", "--install", BUILD, "--component", "sdk", "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
        shutil.copytree(os.path.join(BUILD, "installed_headers"), os.path.join(prefix, "include/capstan"), dirs_exist_ok=True)
        source = os.path.join(folder, "documented.cpp")
        with open(source, "w", encoding="utf-8") as file:
            file.write(text)
        includes = ["-I", os.path.dirname(os.path.abspath(__file__)), "-I", os.path.join(prefix, "include"), "-isystem",
                    os.path.join(TORCH, "include"), "-isystem", os.path.join(TORCH, "include/torch/csrc/api/include")]
        compiler = ["c++", "-std=c++20", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused"]
        if subprocess.run([*compiler, *includes, source], check=False).returncode != 0:
            sys.exit("a block of the documentation does not compile: the lines above name its page")
    print(f"{count} blocks compile")


if __name__ == "__main__":
    main()
