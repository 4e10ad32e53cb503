// cli/gospels.h: the text in the program that `tutti init` gives a first run to train on.
#pragma once

#include <string_view>

namespace tutti::cli {

// The four Gospels of the King James Bible (public domain; Debian package bible-kjv), 437 kB of ASCII: a heading of
// book and chapter between blank lines, one verse a line.
std::string_view gospels();

}  // namespace tutti::cli
