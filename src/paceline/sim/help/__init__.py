"""The simulator's driver of `core/help`: what a job's coordinator sees, and what it tells the workers.

coordinator      one a job: events in, the parts below in their order
helped_job       one job as its coordinator sees it; the log of decisions
watch            progress for detection, deaths, whether anything moves
micro_batching   which iterations are cut
epochs           roles become epochs of the transport
claims           who gets which micro-batch
packet_contents  what a worker's packets hold
passes           what a worker does after each pass
recovery         deaths
racks            places in masks, who carries whose bit in several racks
leave_out        for comparison: sums without the slowest, inexact
orders           entry points into the compiled hosts
"""
