"""Broken, huge and hostile robots' files: each ends in a clear error, soon, and in little memory."""

import os
import re
import resource
import struct
import time

import pytest

from ukjax import rigid

from ..inside import reading_of
from .test_from_file import SMALL, URDF, WITHIN, write


def asset(text):
    return f"<mujoco><asset>{text}</asset></mujoco>"


@pytest.fixture(autouse=True)
def _soon_and_in_little_memory():
    """Within 20 s each, on a slow machine, and 500 MB more than before; without bounds these take minutes, or GB."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.perf_counter() - start < 20.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024


HOSTILE = {
    "no XML": ("<mujoco><worldbody>", "is not well-formed XML"),
    "another root": ("<html/>", "whose root is <mujoco>, but the text has <html>"),
    "entities": ('<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><mujoco>&b;</mujoco>', "must not define entities"),
    "nonsense": ("<mujoco><worldbody><bone/></worldbody></mujoco>", "no MJCF that MuJoCo reads"),
    "negative mass": (
        WITHIN.format('<body><joint/><inertial pos="0 0 0" mass="-1" diaginertia="1 1 1"/></body>'),
        "no MJCF that MuJoCo reads",
    ),
    "impossible inertia": (
        WITHIN.format('<body><joint/><inertial pos="0 0 0" mass="1" diaginertia="1 1 9"/></body>'),
        "no MJCF that MuJoCo reads",
    ),
    "no mass": ("<mujoco><worldbody><body><joint/></body></worldbody></mujoco>", "no MJCF that MuJoCo reads"),
    "two of one name": (SMALL.replace("</body>", '</body><body name="a"/>'), "no MJCF that MuJoCo reads"),
    "multiplied": (
        WITHIN.format('<replicate count="1000000"><body><geom size="1"/></body></replicate>'),
        "<replicate>, which is not read",
    ),
    "a grid": (WITHIN.format('<flexcomp count="999 999 999"/>'), "<flexcomp>, which is not read"),
    "too many bodies": (
        WITHIN.format('<body><joint/><geom size="1"/></body>' * 2500),
        "source has 2500 bodies",
    ),
    "a file, from a text": (
        '<mujoco><asset><mesh name="m" file="/etc/passwd"/></asset></mujoco>', "is a text, and so names no other files"
    ),
    "a folder, from a text": ('<mujoco><compiler meshdir="/etc"/></mujoco>', "names no other files, but has '/etc'"),
    "deep": ("<mujoco><worldbody>" + 100_000 * "<body>", "401 deep"),
    "many elements": (WITHIN.format("<body>" + 60_000 * "<geom/>" + "</body>"), "more than 50000 elements"),
    "many laughs": (
        "<!DOCTYPE x [<!ENTITY a0 'ha'>"
        + "".join(f"<!ENTITY a{i + 1} '{10 * f'&a{i};'}'>" for i in range(20))
        + "]><mujoco model='&a20;'/>",
        "must not define entities",
    ),
    "heights": (asset('<hfield name="h" nrow="40000" ncol="40000" size="1 1 1 1"/>'), "asks for 1600000000 numbers"),
    "pixels": (asset('<texture name="t" builtin="flat" width="40000" height="40000"/>'), "asks for 9600000000 numbers"),
    "a fine mesh": (asset('<mesh name="m" builtin="supersphere" params="20000 1 1"/>'), "asks for 400000000 numbers"),
    "numbers of a user": ('<mujoco><size nuser_body="2000000000"/></mujoco>', "asks for 100000000000000 numbers"),
    "a long reading": ('<mujoco><sensor><user dim="900000000"/></sensor></mujoco>', "asks for 45000000000000 numbers"),
    "many keys": ('<mujoco><size nkey="900000000"/></mujoco>', "asks for 45000000000000 numbers"),
    "a long simulation": (
        '<mujoco><compiler><lengthrange mode="all" inttotal="1e9" timestep="1e-6"/></compiler></mujoco>',
        "<lengthrange>, which is not read",
    ),
    "further models": (asset('<model name="m" file="m.xml"/>'), "<model>, which is not read"),
    "too large a number": (
        WITHIN.format('<body><joint/><inertial pos="0 0 0" mass="1e400" diaginertia="1 1 1"/></body>'),
        "no MJCF that MuJoCo reads",
    ),
    "infinite": (SMALL.replace("0.1", "-Infinity"), "size of <geom> is '-Infinity'"),
    "an axis of zero": (SMALL.replace("<joint/>", '<joint axis="0 0 0"/>'), "no MJCF that MuJoCo reads"),
    "not a number": (SMALL.replace("<joint/>", '<joint armature="nan"/>'), "armature of <joint> is 'nan'"),
    "an unknown body": (
        SMALL.replace("</mujoco>", '<equality><connect body1="a" body2="z" anchor="0 0 0"/></equality></mujoco>'),
        "no MJCF that MuJoCo reads",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_broken_and_hostile_texts_end_in_an_error(name):
    text, match = HOSTILE[name]
    with pytest.raises(ValueError, match=match):
        rigid.from_file(text) if text.startswith("<mujoco") else rigid.from_mjcf(text)


def test_urdf_that_nests_or_goes_round_ends_in_an_error():
    with pytest.raises(ValueError, match="401 deep"):
        rigid.from_urdf("<robot>" + 100_000 * "<link>")
    joints = "".join(
        f'<joint name="{n}" type="fixed"><parent link="{p}"/><child link="{c}"/></joint>' for n, p, c in ("jab", "kba")
    )
    with pytest.raises(ValueError, match="joints 'k', 'j' lead round in a circle"):
        rigid.from_urdf(f'<robot name="r"><link name="a"/><link name="b"/>{joints}</robot>')
    with pytest.raises(ValueError, match="source has 2500 bodies"):
        rigid.from_urdf(f"<robot>{2500 * '<link/>'}</robot>")


def test_what_is_no_file_ends_in_an_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/zero", "", "a\0b", 100_000 * "x"):
        with pytest.raises(ValueError, match="there is no file"):
            rigid.from_file(path)
    with pytest.raises(ValueError, match="not well-formed XML, no element found"):
        rigid.from_file(write(tmp_path, "empty.xml", ""))


def test_files_that_name_pipes_themselves_or_too_many_end_in_an_error(tmp_path):
    robot = lambda text: rigid.from_file(write(tmp_path, "robot.xml", text))
    os.mkfifo(tmp_path / "pipe.stl")
    with pytest.raises(ValueError, match="is no file, but something else"):
        robot(asset('<mesh name="m" file="pipe.stl"/>'))
    (tmp_path / "zero.stl").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="lies outside of its folder"):
        robot(asset('<mesh name="m" file="zero.stl"/>'))
    (tmp_path / "round.stl").symlink_to(tmp_path / "round.stl")
    with pytest.raises(ValueError, match="leads to no file|no MJCF that MuJoCo reads"):
        robot(asset('<mesh name="m" file="round.stl"/>'))
    with pytest.raises(ValueError, match="lies outside of its folder"):
        robot(asset('<texture name="t" type="cube" fileright="../right.png"/>'))
    with pytest.raises(ValueError, match="already included"):
        robot('<mujoco><include file="robot.xml"/></mujoco>')
    for i in range(300):
        write(tmp_path, f"{i}.xml", f'<mujoco><include file="{i + 1}.xml"/></mujoco>')
    with pytest.raises(ValueError, match="200 files that it includes"):
        rigid.from_file(tmp_path / "0.xml")
    # A picture of a few bytes that unpacks to 10 GB.
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 60_000, 60_000))
    with pytest.raises(ValueError, match="asks for 3600000000 numbers"):
        robot(asset('<texture name="t" type="2d" file="bomb.png"/>'))


def test_files_that_lead_elsewhere_or_are_too_large_end_in_an_error(tmp_path):
    outside = write(tmp_path, "secret.xml", SMALL)
    for text in (
        '<mujoco><include file="../secret.xml"/></mujoco>',
        f'<mujoco><include file="{outside}"/></mujoco>',
        '<mujoco><compiler meshdir=".."/><asset><mesh name="m" file="secret.xml"/></asset></mujoco>',
    ):
        with pytest.raises(ValueError, match="lies outside of its folder"):
            rigid.from_mjcf(write(tmp_path, "inside/robot.xml", text))
    (tmp_path / "inside" / "way.xml").symlink_to(outside)
    with pytest.raises(ValueError, match="lies outside of its folder"):
        rigid.from_mjcf(write(tmp_path, "inside/robot.xml", '<mujoco><include file="way.xml"/></mujoco>'))
    with pytest.raises(ValueError, match="there is no file"):
        rigid.from_mjcf(tmp_path / "nothing.xml")
    with pytest.raises(TypeError, match="must be a path"):
        rigid.from_mjcf(3)
    write(tmp_path, "bytes.xml", "").write_bytes(b"\xff\xfe<mujoco/>")
    with pytest.raises(ValueError, match="text in UTF-8"):
        rigid.from_mjcf(tmp_path / "bytes.xml")
    with pytest.raises(ValueError, match="whose root is <robot>"):
        rigid.from_urdf(SMALL)
    with pytest.raises(ValueError, match=r"joint 'hip' \(line \d+\) has the parent 'face', but there is no"):
        rigid.from_urdf(re.sub('link="base"', 'link="face"', URDF))
    large = SMALL + " " * 2**23
    with pytest.raises(ValueError, match=r"at most \d+ are read"):
        rigid.from_mjcf(large)
    with pytest.raises(ValueError, match=r"at most \d+ are read"):
        rigid.from_mjcf(write(tmp_path, "long.xml", large))


def test_files_of_a_trusted_folder_are_read(tmp_path):
    """As in collections of robots that share meshes and parts: `../parts/arm.xml`."""
    own, parts = tmp_path / "robots" / "one", tmp_path / "robots" / "parts"
    own.mkdir(parents=True)
    parts.mkdir()
    (parts / "arm.xml").write_text(SMALL)
    (own / "robot.xml").write_text('<mujoco><include file="../parts/arm.xml"/></mujoco>')
    with pytest.raises(ValueError, match="lies outside of its folder .*trusted=..., or --trusted DIR"):
        rigid.from_file(own / "robot.xml")
    for trusted in (parts, str(tmp_path / "robots")):
        assert rigid.from_mjcf(own / "robot.xml", trusted=trusted).layout.bodies
    (own / "robot.xml").write_text('<mujoco><include file="../../arm.xml"/></mujoco>')
    (tmp_path / "arm.xml").write_text(SMALL)
    with pytest.raises(ValueError, match="outside of its folder .* and of the trusted one"):
        rigid.from_mjcf(own / "robot.xml", trusted=parts)
    with pytest.raises(ValueError, match="trusted must be the path of a folder, but there is none"):
        rigid.from_mjcf(own / "robot.xml", trusted=own / "robot.xml")
    with pytest.raises(TypeError, match="trusted must be the path of a folder"):
        rigid.from_mjcf(own / "robot.xml", trusted=3)
    with pytest.raises(ValueError, match="trusted is .* but is for MJCF only"):
        reading_of(URDF, trusted=own)


def test_a_line_before_the_declaration_is_no_error_and_lines_are_those_of_the_file(tmp_path):
    declared = '\n \n<?xml version="1.0"?>\n'
    assert rigid.from_urdf(declared + '<robot name="r"><link name="a"/></robot>').layout.n == 0
    assert rigid.from_mjcf(declared + SMALL).layout.n == rigid.from_mjcf(SMALL).layout.n
    place = tmp_path / "robot.urdf"
    text = declared + '<robot name="r">\n<link name="a"/>\n<link name="b"/>\n{}\n</robot>'
    part = '<joint name="j" type="{}"><parent link="{}"/><child link="b"/></joint>'
    for wrong, words in (
        ("<link>", "not well-formed XML, mismatched tag: line 8"),
        ('<link name="b"/>', r"two of its <link> are called 'b', the second \(line 7\)"),
        ("<link/>", r"a <link> has no name \(line 7\)"),
        (part.format("hook", "a"), r"joint 'j' has the type 'hook'.* \(line 7\)"),
        (part.format("fixed", "c"), r"joint 'j' \(line 7\) has the parent 'c'"),
    ):
        place.write_text(text.format(wrong))
        with pytest.raises(ValueError, match=words):
            rigid.from_urdf(place)


def test_files_without_bodies_say_so():
    for text in ("<mujoco/>", WITHIN.format("")):
        with pytest.raises(ValueError, match="source has no <body>, so nothing could move"):
            rigid.from_mjcf(text)
    for text in ('<robot name="r"/>', '<robot name="r"><link name="world"/></robot>'):
        with pytest.raises(ValueError, match="it has no <link> that could move"):
            rigid.from_urdf(text)
