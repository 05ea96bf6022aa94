"""StableHLO: MLIR text <-> HLO."""

from fusile.hlo.ir import Module
from fusile.stablehlo import assembly as _assembly  # noqa: F401  the readers of pretty forms enter themselves
from fusile.stablehlo.conversion import Program
from fusile.stablehlo.parser import Parser
from fusile.stablehlo.printer import print_module


def parse(text: str) -> Module:
    """The module that StableHLO text means: pretty or generic form, CHLO ops included. The entry is
    `@main`.

    Raises ParseError with line and column for text that is not such a program, and UnsupportedOpError, naming op and
    line, for ops that HLO has no counterpart of.
    """
    parser = Parser(text)
    return Program(parser, parser.parse_program()).convert()


__all__ = ["parse", "print_module"]
