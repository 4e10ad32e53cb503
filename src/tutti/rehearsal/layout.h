// rehearsal/layout.h: each rank's part of the model, of its state and of the tokens, read from the real Engine of every
// rank, built on a meta device as in rehearse.h. No step runs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/mesh/mesh.h"
#include "tutti/spec/run_spec.h"

namespace tutti::rehearsal {

// Rectangles of a grid and the ranks that hold them, ascending.
struct Holding {
    std::vector<mesh::Block> blocks;
    std::vector<int> ranks;
    std::string label = {};  // beside the ranks: "hop 2"
};

// A tensor, or another index space that ranks divide.
struct Grid {
    std::string name;
    Shape shape;
    std::vector<Holding> holdings;  // in the order of the first rank of each
    bool for_comparison = false;    // what no run does: drawn, and neither printed nor in the document
};

struct LayoutPart {
    enum class Kind : uint8_t { line, square, tensor };  // how its grids are drawn
    std::string title;                                   // "weights that a rank computes with"
    Kind kind;
    std::vector<Grid> grids;
};

struct Layout {
    std::string title;  // "llama-tiny on 8 ranks"
    mesh::Mesh mesh;
    std::vector<mesh::Axes> axes;  // axes_with_several_ranks()
    std::vector<LayoutPart> parts;
};

// The axes with several ranks, in the order of the mesh, those of its second grid last.
std::vector<mesh::Axes> axes_with_several_ranks(const mesh::Mesh& mesh);

// `run` must be validated. Weights are those of the first module, of one block in the middle, and of the last module.
Layout layout_of(const spec::RunSpec& run, int ranks);

// Each rank's coordinates, then for each grid the rectangles of the ranks, as slices: [0:64, :]. With `rank`, only its
// own; otherwise long lists of ranks and holdings end after the first ones.
std::string render_layout(const Layout& layout, std::optional<int> rank);
// {"ranks": [{"rank", "tp", ...}], "parts": [{"title", "grids": [{"name", "shape", "holdings"}]}]}
Json to_json(const Layout& layout);

}  // namespace tutti::rehearsal
