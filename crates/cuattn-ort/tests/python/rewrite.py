"""Moves attention nodes to the plugin's own domain, or back.

    python rewrite.py model.onnx moved.onnx [--back]

For a session in which the CUDA provider comes first, and owns stream and allocator: it would claim the nodes of ONNX's
own domain before the plugin is asked. `cuattn::Attention` means what `ai.onnx::Attention` of opset 25 means, and no
other provider knows it.
"""

import argparse

import onnx

DOMAIN = "cuattn"


def graphs(graph):
    """A graph and all graphs within its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)
            for inner in attribute.graphs:
                yield from graphs(inner)


def renamed(model, back=False):
    """A copy of the model with its attention nodes renamed, and how many there were."""
    moved = onnx.ModelProto()
    moved.CopyFrom(model)
    of, to = ((DOMAIN,), "") if back else (("", "ai.onnx"), DOMAIN)
    count = 0
    for graph in graphs(moved.graph):
        for node in graph.node:
            if node.op_type == "Attention" and node.domain in of:
                node.domain = to
                if back:
                    kept = [a for a in node.attribute if a.name != "outputs"]
                    del node.attribute[:]
                    node.attribute.extend(kept)
                else:
                    # ONNX Runtime does not tell a custom operator how many outputs a node has.
                    node.attribute.append(onnx.helper.make_attribute("outputs", len(node.output)))
                count += 1
    if count and not back and not any(entry.domain == DOMAIN for entry in moved.opset_import):
        moved.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    return moved, count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--back", action="store_true", help="from the plugin's domain to ONNX's own")
    arguments = parser.parse_args()
    # Weights beside the model stay where they are, and are named as before.
    model, count = renamed(onnx.load(arguments.model, load_external_data=False), arguments.back)
    onnx.save(model, arguments.out)
    print(f"{count} attention nodes renamed")


if __name__ == "__main__":
    main()
