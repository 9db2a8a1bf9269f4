"""JUnit's XML, which CI servers show as tests: a failed test for each finding."""

from __future__ import annotations

from xml.etree import ElementTree

from fsdp_migrate.check.checked import CheckResult, Told
from fsdp_migrate.report.check.text import paragraph, place
from fsdp_migrate.report.summary import printable


def render(result: CheckResult) -> str:
    """One test case per finding, failed or, for notes, passed; an error per path that could not be checked.

    A check without any has one test case that passed, since servers take a report without tests for a broken one.
    """
    suite = ElementTree.Element("testsuite", name="fsdp-migrate check")
    for told in result.told:
        _add(suite, told)
    for path, reason in result.skipped:
        _case(suite, path, "not checked", "skipped", reason)
    for path, reason in result.errors:
        _case(suite, path, "could not be checked", "error", reason)
    if not len(suite):
        ElementTree.SubElement(suite, "testcase", classname="fsdp-migrate", name="no FSDP1 left", time="0")
    ElementTree.SubElement(suite, "system-out").text = paragraph(result)
    for name, tag in (("tests", "testcase"), ("failures", ".//failure"), ("errors", ".//error")):
        suite.set(name, str(len(suite.findall(tag))))
    suite.set("skipped", str(len(suite.findall(".//skipped"))))
    suites = ElementTree.Element("testsuites", {name: suite.get(name, "0") for name in ("tests", "failures", "errors")})
    suites.append(suite)
    ElementTree.indent(suites)
    text = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _add(suite: ElementTree.Element, told: Told) -> None:
    finding = told.alone
    name = f"{finding.rule} {finding.name}" + ("" if told.in_checkpoint else f", line {finding.line}")
    text = "\n".join([f"{place(told)}: {printable(finding.text)}", *filter(None, [printable(finding.advice)])])
    case = _testcase(suite, finding.path, name)
    if told.fails:
        failure = ElementTree.SubElement(case, "failure", type=finding.level.value, message=printable(finding.text))
        failure.text = text
    else:
        ElementTree.SubElement(case, "system-out").text = text


def _case(suite: ElementTree.Element, path: str, name: str, outcome: str, reason: str) -> None:
    ElementTree.SubElement(_testcase(suite, path, name), outcome, message=printable(reason))


def _testcase(suite: ElementTree.Element, path: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=printable(path), name=printable(name), time="0")
