"""Optimizers' fused updates of variables (`ResourceApply...`)."""

from __future__ import annotations

from typing import Any

from fusile.hlo.ir import Instruction
from fusile.tf.context import Context
from fusile.tf.node import Node
from fusile.tf.registry import converter


def _like(context: Context, value: Any, x: Instruction) -> Instruction:
    """A scalar operand for every element of x."""
    return context.builder.broadcast_to(value.instruction, x.array_shape.sizes)


@converter("ResourceApplyGradientDescent", effect=True)
def gradient_descent(context: Context, node: Node, inputs: list[Any]) -> list[Any]:
    b = context.builder
    variable, rate, change = inputs[0], inputs[1], inputs[2].instruction
    old = context.read(variable).instruction
    context.assign(variable, b.subtract(old, b.multiply(change, _like(context, rate, old))))
    return []


@converter("ResourceApplyMomentum", "ResourceApplyKerasMomentum", effect=True)
def momentum(context: Context, node: Node, inputs: list[Any]) -> list[Any]:
    b = context.builder
    variable, slot, rate, gradient, decay = inputs
    old, accumulated, change = context.read(variable).instruction, context.read(slot).instruction, gradient.instruction
    lr, mu = _like(context, rate, old), _like(context, decay, old)
    if node.type == "ResourceApplyKerasMomentum":
        new = b.subtract(b.multiply(accumulated, mu), b.multiply(change, lr))
        step = b.subtract(b.multiply(new, mu), b.multiply(change, lr)) if node.attribute("use_nesterov") else new
        context.assign(variable, b.add(old, step))
    else:
        new = b.add(b.multiply(accumulated, mu), change)
        step = b.multiply(new, lr)
        if node.attribute("use_nesterov"):
            step = b.add(b.multiply(change, lr), b.multiply(b.multiply(new, mu), lr))
        context.assign(variable, b.subtract(old, step))
    context.assign(slot, new)
    return []


@converter("ResourceApplyAdam", effect=True)
def adam(context: Context, node: Node, inputs: list[Any]) -> list[Any]:
    """Kingma and Ba's Adam with the bias correction in the rate, as TensorFlow's kernel computes it."""
    b = context.builder
    variable, m_slot, v_slot, beta1_power, beta2_power, rate, beta1, beta2, epsilon, gradient = inputs
    old, m, v = (context.read(r).instruction for r in (variable, m_slot, v_slot))
    change, one = gradient.instruction, context.builder.like(1, old)
    b1, b2 = _like(context, beta1, old), _like(context, beta2, old)
    p1, p2 = _like(context, beta1_power, old), _like(context, beta2_power, old)
    step = b.divide(b.multiply(_like(context, rate, old), b.sqrt(b.subtract(one, p2))), b.subtract(one, p1))
    m = b.add(m, b.multiply(b.subtract(change, m), b.subtract(one, b1)))
    v = b.add(v, b.multiply(b.subtract(b.multiply(change, change), v), b.subtract(one, b2)))
    top = b.add(b.multiply(change, b.subtract(one, b1)), b.multiply(b1, m)) if node.attribute("use_nesterov") else m
    new = b.subtract(old, b.divide(b.multiply(top, step), b.add(_like(context, epsilon, old), b.sqrt(v))))
    for resource, value in ((variable, new), (m_slot, m), (v_slot, v)):
        context.assign(resource, value)
    return []


@converter("ResourceApplyRMSProp", effect=True)
def rms_prop(context: Context, node: Node, inputs: list[Any]) -> list[Any]:
    b = context.builder
    variable, mean_square, moment, rate, rho, decay, epsilon, gradient = inputs
    old, square, m = (context.read(r).instruction for r in (variable, mean_square, moment))
    change, one = gradient.instruction, context.builder.like(1, old)
    square = b.add(
        square, b.multiply(b.subtract(b.multiply(change, change), square), b.subtract(one, _like(context, rho, old)))
    )
    scaled = b.divide(
        b.multiply(change, _like(context, rate, old)), b.sqrt(b.add(square, _like(context, epsilon, old)))
    )
    m = b.add(b.multiply(m, _like(context, decay, old)), scaled)
    for resource, value in ((variable, b.subtract(old, m)), (mean_square, square), (moment, m)):
        context.assign(resource, value)
    return []


@converter("ResourceApplyAdagradV2", effect=True)
def adagrad(context: Context, node: Node, inputs: list[Any]) -> list[Any]:
    b = context.builder
    variable, slot, rate, epsilon, gradient = inputs
    old, total, change = context.read(variable).instruction, context.read(slot).instruction, gradient.instruction
    if node.attribute("update_slots"):
        total = b.add(total, b.multiply(change, change))
    step = b.divide(b.multiply(change, _like(context, rate, old)), b.add(b.sqrt(total), _like(context, epsilon, old)))
    context.assign(variable, b.subtract(old, step))
    context.assign(slot, total)
    return []
