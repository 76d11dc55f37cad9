# Shared by the scripts beside it, which source it from the checkout's root:
#   install_droveway [EXTRA]  the virtual environment .venv, with this checkout installed in it
#   need_debian PACKAGE...    the Debian packages, installed when root, else an error that names the missing ones
#   install_openstack         real OpenStack services in an environment of their own, .venv/openstack
#   unpack_debian PACKAGE...  the Debian packages, unpacked below .venv/debian and not installed
# shellcheck shell=bash

# Whole processes are started by the hundred: none of them should compile the package anew.
unset PYTHONDONTWRITEBYTECODE

die() {
    echo "${0##*/}: $*" >&2
    exit 1
}

need_debian() {
    local package missing=()
    for package in "$@"; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    ((EUID == 0)) || die "Debian packages are missing; run as root: apt-get install ${missing[*]}"
    echo "Installing Debian packages: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update </dev/null
    apt-get -qq -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends "${missing[@]}" </dev/null >/dev/null
}

# A package that stands for the newest of a kind, as linux-image-cloud-amd64 does, has its files in one it depends on.
unpack_debian() {
    local package name folder
    for package in "$@"; do
        folder=$PWD/.venv/debian/$package
        [[ -d $folder ]] && continue
        echo "Unpacking Debian package: $package"
        name=$(apt-cache depends "$package" | sed -n 's/^  Depends: \(linux-image-.*\)/\1/p' | head -n 1)
        rm -rf "$folder.part"
        mkdir -p "$folder.part/files"
        # Without a sandbox: apt's own user need not be able to write here.
        (cd "$folder.part" && apt-get -qq -o APT::Sandbox::User=root download "${name:-$package}" </dev/null) ||
            die "the Debian package ${name:-$package} cannot be had: run apt-get update"
        dpkg -x "$folder.part"/*.deb "$folder.part/files"
        mv -T "$folder.part/files" "$folder"
        rm -rf "$folder.part"
    done
}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# Debian's own Python is compiled with optimizations that cost an hour, and one from elsewhere often without them: the
# tests take up to twice as long with it.
make_venv() {
    local python=${PYTHON:-/usr/bin/python3}
    [[ -n ${PYTHON:-} ]] || new_enough "$python" || python=python3
    new_enough "$python" ||
        die "$python is missing or older than Python 3.11; name a newer one in the variable PYTHON"
    "$python" -c 'import ensurepip, venv' 2>/dev/null || need_debian python3-venv
    echo "Making .venv"
    "$python" -m venv .venv
}

# A stamp with the checksum of all that decides about an installation spares warm runs the call of pip.
install_locked() {
    local extra=$1 stamp=.venv/installed-${1:-base} key
    [[ -x .venv/bin/pip ]] || make_venv
    key=$(sha256sum setup.cfg pyproject.toml; pwd)
    [[ -f $stamp && $(<"$stamp") == "$key" ]] && return
    echo "Installing droveway${extra:+[$extra]} in .venv"
    # What is never imported need not be compiled: that takes a third of the time.
    .venv/bin/pip install --quiet --disable-pip-version-check --no-compile --editable ".${extra:+[$extra]}" </dev/null ||
        die "droveway could not be installed: see what pip says above"
    echo "$key" >"$stamp"
}

install_droveway() {
    # Two scripts started side by side must not both install.
    (flock 9 && install_locked "${1:-}") 9<setup.cfg
}

# Made anew when what is listed changes.
install_openstack() {
    local packages key stamp=.venv/openstack/installed
    key=$(sha256sum tools/openstack-packages)
    [[ -f $stamp && $(<"$stamp") == "$key" ]] && return
    mapfile -t packages < <(sed 's/#.*//' tools/openstack-packages | awk 'NF {print $1}')
    echo "Installing ${#packages[@]} Python packages of OpenStack in .venv/openstack"
    rm -rf .venv/openstack
    .venv/bin/python -m venv .venv/openstack
    .venv/openstack/bin/pip install --quiet --disable-pip-version-check "${packages[@]}" </dev/null ||
        die "the OpenStack services could not be installed: see what pip says above"
    echo "$key" >"$stamp"
}
