#!/usr/bin/python3
"""Writes text.jsonl: 2,000 lines of mixed text, one JSON string a line, from a fixed seed.

    python3 make_text.py > text.jsonl
"""
import json
import random

R = random.Random(20261201)
WORDS = ("the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
         "one you were all her she there would their we him been has when who will no more if out so up said what its about "
         "than into them can only other time new some could these two may first then do any like my now over such our man me "
         "internationalisation photosynthesis McDonald's don't we'll I've they're it's o'clock naïve café Zürich résumé "
         "GPU KV-cache f16 RoPE Kubernetes TCP/IP x86_64 snake_case camelCase HTTP2 ISO8601").split()
CJK = "中文字符测试一二三四五的是在不了有和人这日本語のテキストです漢字かなカナ한국어텍스트입니다안녕하세요龍龜麤"
SCRIPTS = ["Привет мир, как дела", "Γειά σου Κόσμε", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก", "வணக்கம் உலகம்",
           "გამარჯობა მსოფლიო", "Բարեւ աշխարհ", "ሰላም ዓለም", "မင်္ဂလာပါ", "Xin chào thế giới", "ÞÆØÅ þæøå", "ǅ ŉ ﬁ ﬄ"]
EMOJI = ["😀", "🎉", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇫🇷🇯🇵", "1️⃣", "❤️", "🤷‍♂️", "🫠", "☃", "⚙︎", "𝕳𝖊𝖑𝖑𝖔", "𐍈", "𠜎", "\U0001F9FF"]
CODE = ["int main(void) { return 0; }", "for (size_t i = 0; i < n; i++)\n\tsum += a[i];", "def f(x, *, y=None):\n    return x ** 2",
        "<div class=\"a\"><b>Hi</b></div>", "SELECT * FROM t WHERE a >= 10 AND b != 'x';", "#include <stdio.h>",
        "x = {'key': [1, 2, 3], \"z\": {}}", "git commit -m \"fix: don't\" && make -j8", "a->b.c[0]::d<T>()", "// TODO(me): 50% off!",
        "$HOME/.cache/*.gguf", "s/\\bfoo\\b/bar/g", "\\frac{a}{b} \\sum_{i=0}^{n}", "0x7fff 1e-10 3.14159 1,000,000 007", "```c\nputs(\"x\");\n```"]
URLS = ["https://example.org/a/b?c=d&e=%20f#g", "user.name+tag@example.com", "ftp://1.2.3.4:21/", "C:\\Users\\x\\y.txt", "::1", "192.168.0.1/24"]
SPACES = [" ", "  ", "   ", "    ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", " \n", "\n ", " \t ", "\u00a0", "\u3000", "\u2003", "\u200b", "\ufeff",
          "                ", "\x0b", "\x0c", "\u2028", "\u0085"]
ODD = ["\x00", "\x01", "\x7f", "\u00ad", "e\u0301", "n\u0303\u0323", "\u202e", "\ufffd", "▁", "▁▁a", "Ġ", "Ċ", "ĠĠ", "<0x0A>", "<s>", "</s>", "<unk>",
       "<bos>", "<eos>", "<pad>", "<start_of_turn>", "<end_of_turn>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<h1>", "</table>",
       "[multimodal]", "<unused5>", "<repo_name>", "'s", "'S", "'ll", "'LL", "''", "\u2019s", "...", "!!!", "?!", "--", "—", "…", "½", "²", "Ⅷ", "٣", "५", "一〇"]


def words(n):
    return " ".join(R.choice(WORDS) for _ in range(n))


def number():
    return R.choice([str(R.randrange(10 ** R.randrange(1, 20))), f"{R.random():.{R.randrange(1, 12)}f}", f"{R.randrange(1, 99)}%",
                     f"{R.randrange(1000, 3000)}-{R.randrange(1, 13):02}-{R.randrange(1, 29):02}"])


def piece():
    kind = R.randrange(12)
    if kind <= 3:
        return words(R.randrange(1, 9))
    if kind == 4:
        return "".join(R.choice(CJK) for _ in range(R.randrange(1, 12)))
    if kind == 5:
        return R.choice(SCRIPTS)
    if kind == 6:
        return "".join(R.choice(EMOJI) for _ in range(R.randrange(1, 4)))
    if kind == 7:
        return R.choice(CODE)
    if kind == 8:
        return R.choice(URLS)
    if kind == 9:
        return number()
    if kind == 10:
        return "".join(R.choice(ODD) for _ in range(R.randrange(1, 4)))
    return R.choice("abcXYZ0 .,-_=*#~!") * R.randrange(1, 40)


def any_characters(n):
    """Code points of the planes in use, without surrogates."""
    out = ""
    while len(out) < n:
        c = R.choice([R.randrange(0x20, 0x250), R.randrange(0x250, 0x3000), R.randrange(0x3000, 0xd800), R.randrange(0xe000, 0x10000),
                      R.randrange(0x10000, 0x1fa00)])
        out += chr(c)
    return out


def main():
    fixed = ["", " ", "  ", "\n", "a", " a", "a ", "Hello", "Hello world", " Hello", "  Hello  ", "\tx", "0123456789", "aaaaaaaaaaaaaaaa" * 16]
    lines = fixed + SPACES + ODD + EMOJI + CODE + URLS + SCRIPTS
    while len(lines) < 1900:
        parts = []
        for _ in range(R.randrange(1, 8)):
            parts += [piece(), R.choice(SPACES) if R.random() < 0.4 else R.choice(["", " ", ", "])]
        lines.append("".join(parts))
    while len(lines) < 2000:
        lines.append(any_characters(R.randrange(1, 30)))
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
