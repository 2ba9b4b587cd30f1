//! The files: the main one and those that it includes, read and put together as one.

use std::{
    collections::{BTreeSet, HashMap, hash_map},
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use super::{
    Declaration,
    file_marks::Files,
    list::{List, Named},
    place::{At, Location, MAIN, quote},
    problem::Findings,
    schema::{self, RawFile},
    yaml::{self, Node},
};

/// The largest file that is read, in bytes: twenty times the size of one that fills every default
/// limit. It keeps a wrong path (`/dev/zero`, a disk image) from filling the memory.
const MAX_FILE_BYTES: usize = 4 << 20;

/// The most bytes of all files together.
const MAX_BYTES: usize = 16 * MAX_FILE_BYTES;

/// The most files that are included: four for every network that there can be.
const MAX_FILES: usize = 1024;

/// Reads the main source, and what it includes; and the others, as if it included them too: they have the sections that an
/// included file may have, and its `defaults`, and define no name again. What the main one includes is noted in `files`.
pub(super) fn read(
    main: &Declaration,
    others: &[Declaration],
    files: &mut Files,
    findings: &mut Findings,
) -> Option<RawFile> {
    let mut room = MAX_BYTES;
    let text = declared(main, MAIN, &mut room, findings)?;
    let (mut raw, tree) = read_main(&text, findings)?;
    match main {
        Declaration::File(path) => {
            let globs = raw.include.iter().flat_map(|globs| &globs.value.elements);
            files.include(globs.map(|glob| glob.value.clone()).collect());
            include(&tree, path, &mut raw, &mut room, findings);
        }
        Declaration::Text { .. } => refuse_include(&raw, findings),
    }
    for other in others {
        let name = match other {
            Declaration::File(path) => &path.display().to_string(),
            Declaration::Text { name, .. } => name,
        };
        let file = findings.add_file(name);
        let more = declared(other, file, &mut room, findings)
            .and_then(|text| read_included(&text, file, &tree, findings));
        add(&mut raw, more.unwrap_or_default());
    }
    unite(&mut raw, findings);
    Some(raw)
}

/// The text of a source; `room` is left for all.
fn declared(
    source: &Declaration,
    file: usize,
    room: &mut usize,
    findings: &mut Findings,
) -> Option<String> {
    match source {
        Declaration::File(path) => text_of(path, file, room, findings),
        Declaration::Text { text, .. } => {
            into_room(text.len(), room, file, findings)?;
            into_text(text.clone().into_bytes(), file, findings)
        }
    }
}

/// Reads `text` alone; it stands for a whole configuration.
pub(super) fn read_text(text: &str, findings: &mut Findings) -> Option<RawFile> {
    let (mut raw, _) = read_main(text, findings)?;
    refuse_include(&raw, findings);
    unite(&mut raw, findings);
    Some(raw)
}

fn refuse_include(raw: &RawFile, findings: &mut Findings) {
    if let Some(At { place, .. }) = &raw.include {
        findings.add(
            place,
            "only a file can include others; expected all of the configuration in this text",
        );
    }
}

/// The main file, and its tree, in which the defaults are.
fn read_main(text: &str, findings: &mut Findings) -> Option<(RawFile, Node)> {
    let tree = yaml::read(text, MAIN, findings)?;
    let raw = schema::read(&tree, findings)?;
    Some((raw, tree))
}

fn include(main: &Node, path: &Path, raw: &mut RawFile, room: &mut usize, findings: &mut Findings) {
    let Some(At {
        place,
        value: globs,
    }) = &raw.include.clone()
    else {
        return;
    };
    let mut paths = BTreeSet::new();
    for glob in &globs.elements {
        match findings.check(&glob.place, matches(path, &glob.value)) {
            Some(found) => paths.extend(found),
            // What it would have defined is unknown.
            None => add(raw, RawFile::default()),
        }
    }
    if paths.len() > MAX_FILES {
        let words = format!("{} files, expected at most {MAX_FILES}", paths.len());
        findings.add(place, words);
        add(raw, RawFile::default());
        return;
    }
    // The main file, and one file under two names, are read once.
    let mut known = BTreeSet::from([path.canonicalize().unwrap_or_default()]);
    for path in paths {
        if path.canonicalize().is_ok_and(|path| !known.insert(path)) {
            continue;
        }
        let file = findings.add_file(&path.display().to_string());
        let more = text_of(&path, file, room, findings)
            .and_then(|text| read_included(&text, file, main, findings));
        add(raw, more.unwrap_or_default());
    }
}

/// The text of something that is included, with the defaults of the `main` file.
fn read_included(text: &str, file: usize, main: &Node, findings: &mut Findings) -> Option<RawFile> {
    let tree = yaml::read(text, file, findings)?;
    schema::read_included(&tree, file, main, findings)
}

/// The files that `glob` means, in the folder of the file that has it. Only the last part of the
/// path can have a `*`, which stands for any characters, and for none; it finds no hidden file.
pub(super) fn matches(main: &Path, glob: &str) -> Result<Vec<PathBuf>, String> {
    let main_folder = main.parent().unwrap_or_else(|| Path::new(""));
    let (folder, pattern) = match glob.rsplit_once('/') {
        Some((folder, pattern)) => (format!("{folder}/"), pattern),
        None => (String::new(), glob),
    };
    if pattern.is_empty() || folder.contains('*') {
        let words = "is not the name of a file; only its last part can have a *";
        return Err(format!("{} {words}", quote(glob)));
    }
    if !pattern.contains('*') {
        let path = main_folder.join(glob);
        return match path.metadata() {
            Ok(_) => Ok(vec![path]),
            Err(error) => Err(format!("{} cannot be read: {error}", quote(glob))),
        };
    }
    let folder = main_folder.join(folder);
    let listed = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        &folder
    };
    let entries = match fs::read_dir(listed) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("{} cannot be read: {error}", quote(glob))),
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let found = names
        .filter(|name| !name.starts_with('.') && fits(pattern, name))
        .map(|name| folder.join(name))
        .filter(|path| path.is_file());
    Ok(found.collect())
}

/// Whether `name` has the pieces of `pattern` between the `*`, in their order.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut name) = name.strip_prefix(first) else {
        return false;
    };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for piece in middle.split('*') {
        let Some(at) = name.find(piece) else {
            return false;
        };
        name = &name[at + piece.len()..];
    }
    name.ends_with(last)
}

/// The text of a file; `room` is left for all files.
fn text_of(path: &Path, file: usize, room: &mut usize, findings: &mut Findings) -> Option<String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| {
        (&file)
            .take(1 + MAX_FILE_BYTES as u64)
            .read_to_end(&mut bytes)
    });
    if let Err(error) = read {
        findings.add(
            &Location::of_line(file, 0),
            format!("cannot be read: {error}"),
        );
        return None;
    }
    into_room(bytes.len(), room, file, findings)?;
    into_text(bytes, file, findings)
}

/// Takes so many bytes of the `room` for all files.
fn into_room(bytes: usize, room: &mut usize, file: usize, findings: &mut Findings) -> Option<()> {
    let left = room.checked_sub(bytes);
    if left.is_none() {
        let words = format!("more than {} MiB in all files", MAX_BYTES >> 20);
        findings.add(&Location::of_line(file, 0), words);
    }
    *room = left?;
    Some(())
}

/// `bytes` are a text only if they are UTF-8 and not more than a file may have.
pub(super) fn into_text(bytes: Vec<u8>, file: usize, findings: &mut Findings) -> Option<String> {
    if bytes.len() > MAX_FILE_BYTES {
        let words = format!(
            "more than {} MiB; is it a configuration?",
            MAX_FILE_BYTES >> 20
        );
        findings.add(&Location::of_line(file, 0), words);
        return None;
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let (valid, _) = error.as_bytes().split_at(error.utf8_error().valid_up_to());
        let line = 1 + valid.iter().filter(|&&byte| byte == b'\n').count();
        findings.add(
            &Location::of_line(file, line),
            "this line is not UTF-8 text",
        );
    });
    text.ok()
}

fn add(raw: &mut RawFile, more: RawFile) {
    let RawFile {
        version,
        networks,
        nodes,
        pools,
        services,
        clusters,
        // Only the main file has the others.
        ..
    } = more;
    raw.other_versions.extend(version);
    append(&mut raw.networks, networks);
    append(&mut raw.nodes, nodes);
    append(&mut raw.pools, pools);
    append(&mut raw.services, services);
    append(&mut raw.clusters, clusters);
}

fn append<T>(all: &mut List<T>, more: List<T>) {
    all.elements.extend(more.elements);
    all.whole &= more.whole;
}

/// Checks what only all files together can fail.
fn unite(raw: &mut RawFile, findings: &mut Findings) {
    unique(&mut raw.networks, findings);
    unique(&mut raw.nodes, findings);
    unique(&mut raw.pools, findings);
    unique(&mut raw.services, findings);
    unique(&mut raw.clusters, findings);
    let none = raw.networks.whole && raw.networks.elements.is_empty();
    if let Some(At { place, .. }) = raw.include.as_ref().filter(|_| none) {
        findings.add(place, "no file has a network, expected at least one");
    }
}

/// Within a file the YAML reader has seen to it.
fn unique<T>(section: &mut List<Named<T>>, findings: &mut Findings) {
    let mut first: HashMap<String, Location> = HashMap::new();
    section
        .elements
        .retain(|named| match first.entry(named.name.clone()) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(named.place.clone());
                true
            }
            hash_map::Entry::Occupied(occupied) => {
                let line = findings.line(occupied.get(), &named.place);
                let words = format!("{} is already defined in {line}", quote(&named.name));
                findings.add(&named.place, words);
                false
            }
        });
}
