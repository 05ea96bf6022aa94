"""A program's operations -> Module: functions, regions with what they capture, results checked against their types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fusile.base.errors import FusileError, ParseError, UnsupportedOpError
from fusile.base.shape import AnyShape, Shape
from fusile.base.source import Source
from fusile.hlo import opset as _opset  # noqa: F401  the ops enter themselves in OPS
from fusile.hlo.ir import OPS, Computation, Instruction, Module
from fusile.stablehlo.conversion.context import CONVERSIONS, Context, Quantizations, Scope
from fusile.stablehlo.conversion.quantized import check_function_results, convert_quantized, is_quantized
from fusile.stablehlo.parser import Parser, symbol_name
from fusile.stablehlo.quantization import storage_shape
from fusile.stablehlo.syntax import Location, Operation, Region

APPROXIMATE_TOP_K = "ApproxTopK"
"""The custom call that is converted together with the computation that it calls."""
TERMINATORS = ("return", "func.return", "stablehlo.return")
_MAX_LOCATION_DEPTH = 32
_WRONG_INPUT = (ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError, OverflowError)


class Program:
    """Converts a parsed program's functions, each once."""

    def __init__(self, parser: Parser, functions: Sequence[Operation]) -> None:
        self.parser = parser
        self.functions: dict[str, Operation] = {}
        self.computations: dict[str, Computation] = {}
        self._sources: dict[Location, Source | None] = {}
        for function in functions:
            self._enter(function)
        self._free: dict[int, tuple[Region, list[str]]] = {}
        self.random_streams = 0
        """How many random streams the program's ops have taken."""
        self.returned: dict[Computation, list[Quantizations]] = {}
        """The quantized types of what each computation returns."""

    # Places

    def error(self, message: str, operation: Operation, hint: str = "") -> ParseError:
        return self.parser.error(message, hint, operation.position)

    def line(self, operation: Operation) -> int:
        return self.parser.line(operation.position)

    def source(self, location: Location | None) -> Source | None:
        """The user's position that a location gives, if any."""
        if location is None:
            return None
        if location not in self._sources:
            self._sources[location] = self._resolve(location, 0)
        return self._sources[location]

    def _resolve(self, location: Location, depth: int) -> Source | None:
        if location.alias:
            target = self.parser.aliases.get(location.alias)
            return (
                self._resolve(target, depth + 1)
                if isinstance(target, Location) and depth < _MAX_LOCATION_DEPTH
                else None
            )
        if location.file:
            return Source(file=location.file, line=location.line)
        inner = None
        if depth < _MAX_LOCATION_DEPTH:
            inner = next(filter(None, (self._resolve(c, depth + 1) for c in location.children)), None)
        if not location.name:
            return inner
        return Source(location.name, file=inner.file if inner else "", line=inner.line if inner else 0)

    # Functions

    def _enter(self, function: Operation) -> None:
        if function.name == "func.func":
            name = _name(function)
            if name in self.functions:
                line = self.line(self.functions[name])
                raise self.error(f"function @{name} is defined twice, first at line {line}", function)
            self.functions[name] = function

    def convert(self) -> Module:
        """The module whose entry is the function `main`, or the only one."""
        if not self.functions:
            raise self.parser.error("the text holds no function", "a program is func.func @main(...) { ... }")
        entry = "main" if "main" in self.functions else next(iter(self.functions))
        for name in self._callees_first(entry):
            self.computations[name] = self._function(self.functions[name])
        module = Module(self.parser.program_name or "module", self.computations[entry])
        self._describe(module, self.functions[entry])
        return module

    def _callees_first(self, entry: str) -> list[str]:
        order: list[str] = []
        done: dict[str, bool] = {entry: False}
        stack = [(entry, iter(self._callees(entry)))]
        while stack:
            name, callees = stack[-1]
            for callee, operation in callees:
                if callee not in self.functions:
                    raise self.error(f"no function is named @{callee}", operation)
                if done.get(callee) is False:
                    raise self.error(f"function @{callee} calls itself", operation)
                if callee not in done:
                    done[callee] = False
                    stack.append((callee, iter(self._callees(callee))))
                    break
            else:
                done[name] = True
                order.append(name)
                stack.pop()
        return order

    def _callees(self, name: str) -> list[tuple[str, Operation]]:
        found = []
        for operation in _walk(self.functions[name].regions):
            for attribute in ("callee", "decomposition"):
                if attribute in operation.attributes:
                    found.append((symbol_name(operation.attributes[attribute]), operation))
            called = operation.attributes.get("called_computations")
            if operation.attributes.get("call_target_name") == APPROXIMATE_TOP_K and isinstance(called, list):
                found += [(symbol_name(name), operation) for name in called]
        return found

    def _function(self, function: Operation) -> Computation:
        name = _name(function)
        if not function.regions:
            raise self.error(f"function @{name} has no body", function)
        scope = Scope(Computation(name))
        region = function.regions[0]
        for argument, shape, location in region.arguments:
            if not all(leaf.is_static for leaf in shape.leaves()):
                raise UnsupportedOpError(
                    f"function @{name} at line {self.line(function)} takes a tensor of unknown size {shape}",
                    hint="give the sizes, for example by lowering for concrete arguments",
                )
            scope.note_type(argument, shape)
            plain = storage_shape(shape)
            scope.values[argument] = scope.computation.parameter(plain, argument.lstrip("%"), self.source(location))
        self._body(scope, region, tuple_root=False)
        check_function_results(self, function, scope.computation)
        return scope.computation

    def _describe(self, module: Module, entry: Operation) -> None:
        """Donated arguments and names of results, from the function's attributes."""
        leaves = len(module.entry.root.shape.leaves())
        for number, attributes in enumerate(_dictionaries(entry.attributes.get("arg_attrs"))):
            output = attributes.get("tf.aliasing_output")
            if isinstance(output, int) and output < leaves and number < len(module.entry.parameters):
                module.aliases[output] = number
        names = [a.get("jax.result_info") for a in _dictionaries(entry.attributes.get("res_attrs"))]
        if names and all(isinstance(n, str) for n in names):
            module.result_names = [str(n) for n in names]

    # Regions

    def region(self, context: Context, region: Region, captured: Sequence[str], tuple_root: bool) -> Computation:
        """A region as a computation that takes its arguments and then the captured values; constants from outside are
        copied in. Raises UnsupportedOpError when it uses another value from outside."""
        scope = Scope(Computation(context.operation.name.rpartition(".")[2] + ".region"))
        for name, shape, location in region.arguments:
            scope.note_type(name, shape)
            plain = storage_shape(shape)
            scope.values[name] = scope.computation.parameter(plain, name.lstrip("%"), self.source(location))
        for name in self.free_names(region):
            if context.scope.quantization(name):
                scope.quantized[name] = context.scope.quantization(name)
        for name in captured:
            outer = context._operand(name)
            scope.values[name] = scope.computation.parameter(outer.shape, name.lstrip("%").replace("#", "."))
        for name in self.free_names(region):
            if name not in scope.values:
                scope.values[name] = _copied(context, scope.computation, name)
        self._body(scope, region, tuple_root)
        return scope.computation

    def free_names(self, region: Region) -> list[str]:
        """The names of values from outside that a region uses, in order of first use."""
        if id(region) not in self._free:
            defined = {name for name, _, _ in region.arguments}
            free: dict[str, None] = {}
            for operation in region.operations:
                inner = [n for r in operation.regions for n in self.free_names(r)]
                for name in (*operation.operands, *inner):
                    if name not in defined and name.removesuffix("#0") not in defined and f"{name}#0" not in defined:
                        free[name] = None
                defined.update(operation.results)
            self._free[id(region)] = region, list(free)
        return self._free[id(region)][1]

    def captured_names(self, context: Context, regions: Sequence[Region]) -> list[str]:
        """Of the values from outside that the regions use, those that are not copied in."""
        names = dict.fromkeys(name for region in regions for name in self.free_names(region))
        return [name for name in names if not _is_constant(context._operand(name))]

    def _body(self, scope: Scope, region: Region, tuple_root: bool) -> None:
        if not region.operations or region.operations[-1].name not in TERMINATORS:
            raise self.parser.error(f"computation {scope.computation.name} does not end in a return")
        for operation in region.operations[:-1]:
            self._operation(scope, operation)
        context = Context(self, scope, region.operations[-1])
        self.returned[scope.computation] = [scope.quantization(name) for name in context.operation.operands]
        is_array = len(context.operands) == 1 and not tuple_root
        scope.computation.root = context.operands[0] if is_array else context.add("tuple", context.operands)

    def _operation(self, scope: Scope, operation: Operation) -> None:
        context = Context(self, scope, operation)
        results = self._converted(context)
        if len(results) != len(operation.results) and operation.results:
            raise context.error(f"it gives {len(results)} results, the text names {len(operation.results)}")
        for number, (name, result) in enumerate(zip(operation.results, results, strict=False)):
            self._check(context, number, result.shape)
            if name in scope.values:
                raise context.error(f"{name} is defined twice")
            scope.values[name] = result
            if number < len(operation.result_types):
                scope.note_type(name, operation.result_types[number])

    def _converted(self, context: Context) -> Sequence[Instruction]:
        name = context.operation.name
        conversion = CONVERSIONS.get(name) or CONVERSIONS.get(_generic_conversion(name))
        if conversion is None:
            raise context.unsupported("this op is not supported", "see `fusile ops` for those that are")
        try:
            results = convert_quantized(context, conversion) if is_quantized(context) else conversion(context)
        except (ParseError, UnsupportedOpError):
            raise
        except FusileError as error:
            raise context.error(error.message, error.hint) from error
        except _WRONG_INPUT as error:
            raise context.error(f"its operands or attributes do not fit: {error}") from error
        return [results] if isinstance(results, Instruction) else results

    def _check(self, context: Context, number: int, shape: AnyShape) -> None:
        """The result has the type that the text says."""
        types = context.operation.result_types
        written = types[number] if number < len(types) else None
        if isinstance(written, Shape) and written.is_static and shape != storage_shape(written):
            raise context.error(f"result {number} is {shape}, the text says {written}")


def _name(function: Operation) -> str:
    return symbol_name(function.attributes.get("sym_name", ""))


def _generic_conversion(name: str) -> str:
    """The key of the conversion of ops that have one HLO op of the same name without attributes."""
    dialect, _, rest = name.partition(".")
    found = OPS.get(rest.replace("_", "-")) if dialect in ("stablehlo", "chlo") else None
    return "elementwise" if found is not None and found.elementwise else ""


def _walk(regions: Sequence[Region]) -> Iterator[Operation]:
    for region in regions:
        for operation in region.operations:
            yield operation
            yield from _walk(operation.regions)


def _dictionaries(value: Any) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _is_constant(instruction: Instruction) -> bool:
    """A constant, or one that fills an array: copied into regions rather than passed to them."""
    if instruction.opcode == "broadcast":
        instruction = instruction.operands[0]
    return instruction.opcode == "constant"


def _copied(context: Context, target: Computation, name: str) -> Instruction:
    outer = context._operand(name)
    if not _is_constant(outer):
        raise context.unsupported(f"its region uses {name} from outside", "only loops and branches can capture values")
    operands = [target.add(o.op, source=o.source) for o in outer.operands]
    return target.add(outer.op, operands, source=outer.source)
