// The program `tutti`: all of it is in cli/.
#include "tutti/cli/cli.h"

int main(int argc, char** argv) { return tutti::cli::run(argc, argv); }
