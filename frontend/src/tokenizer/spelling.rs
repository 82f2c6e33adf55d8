//! How a vocabulary spells bytes that are no whole character.

use tokenizers::decoders::DecoderWrapper;

/// What the bytes of a token are, by the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// A letter for every byte, as in GPT-2.
    Letters,
    /// Some tokens, `<0x0A>`, are one byte; the others are text.
    Escapes,
    /// Every token is text.
    Text,
}

impl Spelling {
    pub(super) fn of(decoder: Option<&DecoderWrapper>) -> Self {
        match decoder {
            Some(DecoderWrapper::ByteLevel(_)) => Spelling::Letters,
            Some(DecoderWrapper::ByteFallback(_)) => Spelling::Escapes,
            Some(DecoderWrapper::Sequence(list)) => {
                let kinds = list.get_decoders().iter().map(|d| Self::of(Some(d)));
                kinds.into_iter().find(|&kind| kind != Spelling::Text).unwrap_or(Spelling::Text)
            }
            _ => Spelling::Text,
        }
    }

    /// The bytes of a token that may be a part of a character; `None` for a token of whole characters.
    pub(super) fn bytes(self, token: &str) -> Option<Vec<u8>> {
        match self {
            // A token with any other letter in it, one that was added, is text.
            Spelling::Letters => token.chars().map(byte_of).collect::<Option<Vec<u8>>>(),
            Spelling::Escapes => escaped(token).map(|byte| vec![byte]),
            Spelling::Text => None,
        }
    }
}

/// The byte of `<0x0A>`, as the decoder reads it.
fn escaped(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>').filter(|d| d.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}

/// The byte that a letter stands for: printable Latin-1 for itself, the letters from U+0100 on for the other bytes in order.
fn byte_of(letter: char) -> Option<u8> {
    let own = |b: u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    match u32::from(letter) {
        code @ 0..=0xFF => u8::try_from(code).ok().filter(|&b| own(b)),
        code => (0..=u8::MAX).filter(|&b| !own(b)).nth(usize::try_from(code - 0x100).ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::decoders::{byte_fallback::ByteFallback, fuse::Fuse, sequence::Sequence};
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::{Decoder, PreTokenizedString, PreTokenizer};

    /// The library's pre-tokenizer spells every character that has the byte; its decoder takes it back.
    #[test]
    fn letters_are_those_of_the_library() {
        let level = ByteLevel::new(false, true, false);
        for code in (0..0x250).chain([0xFFFD, 0x1F642]).filter_map(char::from_u32) {
            let text = code.to_string();
            let mut cut = PreTokenizedString::from(text.as_str());
            level.pre_tokenize(&mut cut).unwrap();
            let normalized =
                cut.get_splits(tokenizers::OffsetReferential::Normalized, tokenizers::OffsetType::Byte);
            let spelled: String = normalized.iter().map(|s| s.0).collect();
            assert_eq!(Spelling::Letters.bytes(&spelled).unwrap(), text.as_bytes());
        }
        assert_eq!(Spelling::Letters.bytes("\u{144}"), None);
        assert_eq!(Spelling::Letters.bytes("a b"), None);
    }

    #[test]
    fn escapes_are_those_of_the_library() {
        let decoder = ByteFallback::new();
        for token in ["<0x41>", "<0x7f>", "<0x+1>", "<0x041>", "<0x4>", "0x41", "a"] {
            let text = decoder.decode_chain(vec![token.to_string()]).unwrap().concat();
            let is_byte = text != token;
            let bytes = Spelling::Escapes.bytes(token);
            assert_eq!(bytes, is_byte.then(|| text.into_bytes()), "{token}");
        }
        let sequence = Sequence::new(vec![Fuse::new().into(), ByteFallback::new().into()]);
        assert_eq!(Spelling::of(Some(&sequence.into())), Spelling::Escapes);
        assert_eq!(Spelling::of(None), Spelling::Text);
    }
}
