//! Bytes of a log file. All integers are little-endian.
//!
//! ```text
//! file    := header header frame*            the header is there twice: without its salt no frame can be checked
//! header  := "gatelog\n" version:u32 crc:u32 first:u64 salt:u64
//! frame   := length:u32 crc:u32 position:u64 group:u64 payload[length]
//! ```
//!
//! `first` is the position of the file's first record and gives the file its name. Positions rise by one from frame to
//! frame and from file to file.
//!
//! `group` is the first position of the group that was written and synced together with this record. Everything below
//! it was durable before the frame was written. So a frame that cannot be read was acknowledged, and is damage, exactly
//! where some later frame has a `group` above its position; else it and all after it were on their way to the disk when
//! the machine stopped, in whatever order the disk took them.
//!
//! A frame's CRC32C covers payload, length, position, group and the file's salt. The salt is random: bytes inside a
//! record, which come from outside, cannot pose as a frame to a reader that looks for the next whole one.

/// Bytes before the first frame.
pub(super) const FILE_HEADER: usize = 2 * HEADER_COPY;
/// Bytes before a frame's payload.
pub(super) const FRAME_HEADER: usize = 24;
/// The format that this module writes and reads.
pub(super) const VERSION: u32 = 1;

const HEADER_COPY: usize = 32;
const MAGIC: [u8; 8] = *b"gatelog\n";

/// What a file says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) first: u64,
    pub(super) salt: u64,
}

/// Why a file's header cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderFault {
    /// Neither copy is whole.
    Unreadable,
    /// A later format.
    Version(u32),
}

impl FileHeader {
    pub(super) fn encode(&self) -> [u8; FILE_HEADER] {
        let mut copy = [0; HEADER_COPY];
        copy[..8].copy_from_slice(&MAGIC);
        copy[8..12].copy_from_slice(&VERSION.to_le_bytes());
        copy[16..24].copy_from_slice(&self.first.to_le_bytes());
        copy[24..].copy_from_slice(&self.salt.to_le_bytes());
        let crc = header_crc(VERSION, self.first, self.salt);
        copy[12..16].copy_from_slice(&crc.to_le_bytes());
        let mut both = [0; FILE_HEADER];
        both[..HEADER_COPY].copy_from_slice(&copy);
        both[HEADER_COPY..].copy_from_slice(&copy);
        both
    }

    /// Reads either copy from the first bytes of a file, which may be fewer than a header has.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, HeaderFault> {
        let mut fault = HeaderFault::Unreadable;
        for copy in bytes.chunks_exact(HEADER_COPY).take(2) {
            match Self::decode_copy(copy) {
                Some((VERSION, header)) => return Ok(header),
                Some((version, _)) => fault = HeaderFault::Version(version),
                None => {}
            }
        }
        Err(fault)
    }

    fn decode_copy(mut copy: &[u8]) -> Option<(u32, Self)> {
        let magic: [u8; 8] = take(&mut copy)?;
        let version = u32::from_le_bytes(take(&mut copy)?);
        let crc = u32::from_le_bytes(take(&mut copy)?);
        let first = u64::from_le_bytes(take(&mut copy)?);
        let salt = u64::from_le_bytes(take(&mut copy)?);
        let whole = magic == MAGIC && crc == header_crc(version, first, salt) && first > 0;
        whole.then_some((version, Self { first, salt }))
    }
}

fn header_crc(version: u32, first: u64, salt: u64) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&MAGIC), &version.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &first.to_le_bytes()), &salt.to_le_bytes())
}

/// What a frame says of its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) length: u32,
    pub(super) crc: u32,
    pub(super) position: u64,
    pub(super) group: u64,
}

impl FrameHeader {
    /// `payload_crc` is the CRC32C of the payload alone, so that appending threads compute it, not the one that writes.
    pub(super) fn new(length: u32, payload_crc: u32, position: u64, group: u64, salt: u64) -> Self {
        let crc = finish_crc(payload_crc, length, position, group, salt);
        Self { length, crc, position, group }
    }

    pub(super) fn encode(&self) -> [u8; FRAME_HEADER] {
        let mut bytes = [0; FRAME_HEADER];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.crc.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.position.to_le_bytes());
        bytes[16..].copy_from_slice(&self.group.to_le_bytes());
        bytes
    }

    /// Reads the fields; none where there are not enough bytes. Nothing is known of their truth yet.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        Some(Self {
            length: u32::from_le_bytes(take(&mut bytes)?),
            crc: u32::from_le_bytes(take(&mut bytes)?),
            position: u64::from_le_bytes(take(&mut bytes)?),
            group: u64::from_le_bytes(take(&mut bytes)?),
        })
    }

    /// The checksum that this header must have had with this payload, in a file with this salt.
    pub(super) fn expected_crc(&self, payload: &[u8], salt: u64) -> u32 {
        finish_crc(crc32c::crc32c(payload), self.length, self.position, self.group, salt)
    }

    /// Bytes of the frame.
    pub(super) fn frame_bytes(&self) -> u64 {
        FRAME_HEADER as u64 + u64::from(self.length)
    }
}

fn finish_crc(payload_crc: u32, length: u32, position: u64, group: u64, salt: u64) -> u32 {
    let mut fields = [0; 28];
    fields[..4].copy_from_slice(&length.to_le_bytes());
    fields[4..12].copy_from_slice(&position.to_le_bytes());
    fields[12..20].copy_from_slice(&group.to_le_bytes());
    fields[20..].copy_from_slice(&salt.to_le_bytes());
    crc32c::crc32c_append(payload_crc, &fields)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: FileHeader = FileHeader { first: 7, salt: 0x0123_4567_89AB_CDEF };

    #[test]
    fn the_format_is_what_its_description_says() {
        // Given
        let header = HEADER.encode();
        let frame = FrameHeader::new(3, crc32c::crc32c(b"abc"), 7, 6, HEADER.salt);

        // Then: bytes that any other program can check.
        assert_eq!(header[..32], header[32..]);
        assert_eq!(header[..12], *b"gatelog\n\x01\0\0\0");
        assert_eq!(header[16..32], [7, 0, 0, 0, 0, 0, 0, 0, 0xEF, 0xCD, 0xAB, 0x89, 0x67, 0x45, 0x23, 0x01]);
        let covered = [&header[..12], &header[16..32]].concat();
        assert_eq!(header[12..16], crc32c::crc32c(&covered).to_le_bytes());
        let covered =
            [&b"abc"[..], &[3, 0, 0, 0], &[7, 0, 0, 0, 0, 0, 0, 0], &[6, 0, 0, 0, 0, 0, 0, 0], &header[24..32]];
        assert_eq!(frame.crc, crc32c::crc32c(&covered.concat()));
        assert_eq!(FrameHeader::decode(&frame.encode()), Some(frame));
        assert_eq!(frame.expected_crc(b"abc", HEADER.salt), frame.crc);
    }

    #[test]
    fn one_damaged_copy_of_the_header_is_enough() {
        for bit in 0..FILE_HEADER * 8 {
            let mut bytes = HEADER.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FileHeader::decode(&bytes), Ok(HEADER), "bit {bit}");
        }
    }

    #[test]
    fn a_cut_header_is_unreadable_until_one_copy_is_there() {
        let bytes = HEADER.encode();
        for length in 0..=FILE_HEADER {
            let expected = if length < 32 { Err(HeaderFault::Unreadable) } else { Ok(HEADER) };
            assert_eq!(FileHeader::decode(&bytes[..length]), expected, "{length} bytes");
        }
    }

    #[test]
    fn zeroes_are_neither_header_nor_frame() {
        assert_eq!(FileHeader::decode(&[0; FILE_HEADER]), Err(HeaderFault::Unreadable));
        let frame = FrameHeader::decode(&[0; FRAME_HEADER]).expect("enough bytes");
        assert_ne!(frame.expected_crc(&[], 0), frame.crc);
    }

    #[test]
    fn a_later_format_is_named() {
        let mut bytes = HEADER.encode();
        bytes[8] = 2;
        let crc = header_crc(2, HEADER.first, HEADER.salt);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes[40] ^= 1;
        assert_eq!(FileHeader::decode(&bytes), Err(HeaderFault::Version(2)));
    }

    #[test]
    fn every_field_and_every_payload_bit_is_covered() {
        let payload = *b"some rows";
        let frame = FrameHeader::new(9, crc32c::crc32c(&payload), 12, 11, HEADER.salt);
        let bytes = [&frame.encode()[..], &payload].concat();
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let read = FrameHeader::decode(&bytes).expect("enough bytes");
            assert_ne!(read.expected_crc(&bytes[FRAME_HEADER..], HEADER.salt), read.crc, "bit {bit}");
        }
        assert_ne!(frame.expected_crc(&payload, HEADER.salt ^ 1), frame.crc);
    }
}
